"""Fields of OpenAI's requests that ask for nothing here: tables of what is refused, and what is left unread.

Clients send many fields with the value that means "no": that value is fine. Any other asks for something that this
server does not do, and silence would be a wrong answer. A field in no table and no schema is a mistake of the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vkinductor.serve.errors import InvalidRequestError

# field: (values that ask for nothing, what any other asks for). None never asks for anything.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), "more than one choice"),
    "best_of": ((1,), "more than one choice"),
    "logprobs": ((False,), "log probabilities"),
    "top_logprobs": ((0,), "log probabilities"),
    "tools": (([],), "tools"),
    "tool_choice": (("none", "auto"), "tools"),
    "functions": (([],), "functions"),
    "function_call": (("none", "auto"), "functions"),
    "response_format": (({"type": "text"},), "structured output"),
    "logit_bias": (({},), "a bias on logits"),
    "presence_penalty": ((0,), "penalties"),
    "frequency_penalty": ((0,), "penalties"),
    "repetition_penalty": ((1,), "penalties"),
    "min_p": ((0,), "min_p sampling"),
    "modalities": ((["text"],), "other output than text"),
    "audio": ((), "audio"),
    "prediction": ((), "predicted output"),
    "web_search_options": ((), "web search"),
    "echo": ((False,), "the prompt in the answer"),
    "suffix": (("",), "insertion before a suffix"),
}

# About accounts, storage, billing and models of other makers: the answer is the same without them.
IGNORED = frozenset(
    {
        "metadata",
        "moderation",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)


def take_out(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are left for a schema. Raises InvalidRequestError for one that asks for what is not done."""
    left: dict[str, Any] = {}
    for name, value in values.items():
        if name in REFUSED:
            neutral, what = REFUSED[name]
            # A list or dict of a client is compared by value; True is no 1 here, nor False a 0.
            if value is not None and not any(value == one and _same_kind(value, one) for one in neutral):
                raise InvalidRequestError(
                    f"this server does not do {what}: leave {name} out", param=name, code="unsupported_parameter"
                )
        elif name not in IGNORED:
            left[name] = value
    return left


def _same_kind(value: Any, other: Any) -> bool:
    return isinstance(value, bool) == isinstance(other, bool)
