"""Fields of requests: types and ranges, what is refused, what is ignored, and what the message says."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette")

from vkinductor.serve import fields
from vkinductor.serve.errors import InvalidRequestError
from vkinductor.serve.limits import Limits
from vkinductor.serve.schema import ChatRequest, CompletionRequest, parse

USER = [{"role": "user", "content": "x"}]
LIMITS = Limits(messages=3, stops=2, stop_characters=4)


def chat(**values):
    return parse(json.dumps({"messages": USER, **values}).encode(), ChatRequest, LIMITS)


def completion(**values):
    return parse(json.dumps({"prompt": "x", **values}).encode(), CompletionRequest, LIMITS)


@pytest.mark.parametrize(
    ("values", "message", "param"),
    [
        ({"messages": []}, "messages: list should have at least 1 item", "messages"),
        ({"messages": USER * 4}, "messages has 4 elements: the limit is 3", "messages"),
        ({"messages": "x"}, "messages: input should be a valid list", "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "input should be 'system'", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content is missing", "messages[0].content"),
        ({"messages": [*USER, {"role": "user", "content": 5}]}, "must be a string or a list", "messages[1].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "parts must be of type text and hold one: this model reads nothing else, not 'image_url'",
            "messages[0].content",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]},
            "at most 0 items",
            "messages[0].tool_calls",
        ),
        ({"temperature": 2.1}, "temperature: input should be less than or equal to 2", "temperature"),
        ({"temperature": "1"}, "temperature: input should be a valid number", "temperature"),
        ({"temperature": True}, "temperature: input should be a valid number", "temperature"),
        ({"top_p": 0}, "top_p: input should be greater than 0", "top_p"),
        ({"top_k": -1}, "top_k: input should be greater than or equal to 0", "top_k"),
        ({"max_tokens": 0}, "max_tokens: input should be greater than or equal to 1", "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens: input should be a valid integer", "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "two names of one number", None),
        ({"seed": 1 << 63}, "seed: input should be less than", "seed"),
        ({"stop": ""}, "stop: must be a string or a list of strings, none of them empty", "stop"),
        ({"stop": ["a", 1]}, "stop: must be a string or a list of strings", "stop"),
        ({"stop": ["a", "b", "c"]}, "stop has 3 elements: the limit is 2", "stop"),
        ({"stop": "abcde"}, "a stop string has 5 characters: the limit is 4", "stop"),
        ({"stream": "yes"}, "stream: input should be a valid boolean", "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options needs stream to be true", None),
        ({"temprature": 1}, "unknown field temprature", "temprature"),
        ({"n": 2}, "this server does not do more than one choice: leave n out", "n"),
        ({"n": True}, "more than one choice", "n"),
        ({"tools": [{"type": "function"}]}, "this server does not do tools: leave tools out", "tools"),
        ({"logprobs": True}, "this server does not do log probabilities: leave logprobs out", "logprobs"),
        ({"response_format": {"type": "json_object"}}, "structured output", "response_format"),
        ({"logit_bias": {"50256": -100}}, "a bias on logits", "logit_bias"),
        ({"presence_penalty": 0.1}, "penalties", "presence_penalty"),
    ],
)
def test_mistakes(values, message, param):
    with pytest.raises(InvalidRequestError) as error:
        chat(**values)
    assert message in error.value.message
    assert error.value.param == param


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (["a", "b"], "prompt: must be one prompt: send several in requests of their own"),
        ([[1], [2]], "prompt: must be one prompt"),
        ([1, "a"], "prompt: must be a string or a list of token ids"),
        ([1.5], "prompt: must be a string or a list of token ids"),
        ([True], "prompt: must be a string or a list of token ids"),
        (None, "prompt: must be a string or a list of token ids"),
    ],
)
def test_prompts_that_are_none(prompt, message):
    with pytest.raises(InvalidRequestError) as error:
        completion(prompt=prompt)
    assert message in error.value.message


def test_prompts():
    assert [completion(prompt=prompt).prompt for prompt in ("x", ["x"], [1, 2], [[1, 2]], "")] == [
        "x",
        "x",
        [1, 2],
        [1, 2],
        "",
    ]


def test_values_that_ask_for_nothing():
    values = {name: neutral[0] for name, (neutral, _) in fields.REFUSED.items() if neutral}
    request = chat(**values, **dict.fromkeys(fields.IGNORED, "whatever"), temperature=1, stop=None)
    assert (request.temperature, request.stop, request.wanted_tokens()) == (1.0, [], None)
    chat(**dict.fromkeys(fields.REFUSED))
    chat(n=1.0, presence_penalty=0.0)
    assert not set(fields.REFUSED) & fields.IGNORED
    assert not {*fields.REFUSED, *fields.IGNORED} & {*ChatRequest.model_fields, *CompletionRequest.model_fields}


def test_messages_as_clients_send_them():
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        {"role": "user", "content": "hi", "name": "me"},
        {"role": "assistant", "content": "ho", "refusal": None, "tool_calls": None, "annotations": [], "audio": None},
    ]
    assert [message.turn() for message in chat(messages=messages).messages] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ho"},
    ]


def test_numbers_of_tokens():
    assert (chat(max_tokens=5).wanted_tokens(), chat(max_completion_tokens=6).wanted_tokens()) == (5, 6)
    assert chat(max_tokens=5, max_completion_tokens=5).wanted_tokens() == 5
    assert (completion().wanted_tokens(), completion(max_tokens=3).wanted_tokens()) == (16, 3)


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.sampled_from(["user"]))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["role", "content", "type", "text", "include_usage", "x"]), inner, max_size=3),
    ),
    max_leaves=6,
)
NAMES = [*ChatRequest.model_fields, *CompletionRequest.model_fields, *fields.REFUSED, *fields.IGNORED, "x"]


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4), st.sampled_from([ChatRequest, CompletionRequest]))
def test_any_body_is_a_request_or_a_mistake_of_the_client(values, schema):
    start = {"messages": USER} if schema is ChatRequest else {"prompt": "x"}
    try:
        parse(json.dumps({**start, **values}).encode("utf-8", "replace"), schema, LIMITS)
    except InvalidRequestError as error:
        json.dumps(error.body())
