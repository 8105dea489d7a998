"""OpenAI's own client against a real server: what it parses is what it wants."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from fake_engine import BEGIN, CONTEXT, FakeEngine

openai = pytest.importorskip("openai")

USER = [{"role": "user", "content": "Hé 🙂!"}]
CHAT = "[user]Hé 🙂![assistant]"  # what the engine answers to it: the prompt


def client_of(running, **options):
    options = {"api_key": "none", "max_retries": 0, "timeout": 60, **options}
    return openai.OpenAI(base_url=running.url, **options)


@pytest.fixture
def engine():
    return FakeEngine()


@pytest.fixture
def running(serve, engine):
    return serve(engine)


@pytest.fixture
def client(running):
    with client_of(running) as client:
        yield client


def test_chat(client, engine):
    answer = client.chat.completions.create(model="fake", messages=USER)
    assert answer.object == "chat.completion"
    assert answer.model == "fake"
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason) == (0, "stop")
    assert (choice.message.role, choice.message.content) == ("assistant", CHAT)
    size = len(CHAT.encode())
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        size,
        size,
        2 * size,
    )
    (options,) = engine.options
    assert (options.temperature, options.top_p, options.top_k, options.seed) == (1, 1, 0, None)
    assert options.tokens == CONTEXT - size
    assert options.stop == engine.stop_tokens


def test_chat_as_a_stream(client, engine):
    stream = client.chat.completions.create(
        model="fake", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    *texts, last, usage = chunks
    assert texts[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content for chunk in texts) == CHAT
    assert [chunk.choices[0].finish_reason for chunk in texts] == [None] * len(texts)
    assert last.choices[0].finish_reason == "stop"
    assert [chunk.usage for chunk in (*texts, last)] == [None] * (len(texts) + 1)
    assert usage.choices == []
    assert usage.usage.completion_tokens == len(CHAT.encode())


def test_completions(client, engine):
    answer = client.completions.create(model="fake", prompt="abc")
    assert answer.object == "text_completion"
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("abc", "stop")
    assert answer.usage.prompt_tokens == 4
    assert engine.prompts == [(BEGIN, *b"abc")]
    assert engine.options[0].tokens == 16
    chunks = list(client.completions.create(model="fake", prompt=[BEGIN, *b"xyz"], stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "xyz"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert engine.prompts[1] == (BEGIN, *b"xyz")


def test_options_reach_the_engine(client, engine):
    client.chat.completions.create(
        model="fake",
        messages=USER,
        temperature=0.5,
        top_p=0.25,
        seed=7,
        max_completion_tokens=3,
        extra_body={"top_k": 40},
    )
    (options,) = engine.options
    assert (options.temperature, options.top_p, options.top_k, options.seed, options.tokens) == (0.5, 0.25, 40, 7, 3)


def test_length_and_stop_strings(client, engine):
    engine.reply = "one two three"
    short = client.completions.create(model="fake", prompt="x", max_tokens=5)
    assert (short.choices[0].text, short.choices[0].finish_reason) == ("one t", "length")
    engine.produced = 0
    stopped = client.completions.create(model="fake", prompt="x", stop=["wo t", "never"])
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == ("one t", "stop")
    assert engine.produced == len("one two t")
    stream = client.completions.create(model="fake", prompt="x", stop="thr", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "one two "


def test_a_model_without_a_template(serve):
    engine = FakeEngine("fine\nUser: and you?", template=False)
    with client_of(serve(engine)) as client:
        answer = client.chat.completions.create(model="fake", messages=[{"role": "system", "content": "Be."}, *USER])
    assert answer.choices[0].message.content == "fine"
    assert bytes(engine.prompts[0][1:]).decode() == "System: Be.\nUser: Hé 🙂!\nAssistant:"


def test_models(client):
    (model,) = client.models.list()
    assert (model.id, model.object, model.owned_by) == ("fake", "model", "vkinductor")
    assert client.models.retrieve("fake").id == "fake"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-4' here, only 'fake'"):
        client.models.retrieve("gpt-4")
    with pytest.raises(openai.NotFoundError, match="only 'fake'"):
        client.completions.create(model="gpt-4", prompt="x")


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_over_the_context(client, engine, stream):
    long = [{"role": "user", "content": "x" * CONTEXT}]
    size = CONTEXT + len("[user][assistant]")
    with pytest.raises(
        openai.BadRequestError, match=f"the prompt has {size} tokens: the context holds {CONTEXT}"
    ) as error:
        client.chat.completions.create(model="fake", messages=long, stream=stream)
    assert (error.value.code, error.value.param) == ("context_length_exceeded", "messages")
    assert engine.prompts == []


def test_what_the_template_refuses(client):
    with pytest.raises(openai.BadRequestError, match="that word is not allowed"):
        client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "forbidden"}])


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails(client, engine, log, stream):
    engine.error = RuntimeError("secret detail")
    with pytest.raises(openai.InternalServerError, match="generation failed; the server's log has the reason"):
        client.completions.create(model="fake", prompt="x", stream=stream)
    engine.error = None
    assert client.completions.create(model="fake", prompt="x").choices[0].text == "x"


def test_an_engine_that_fails_in_the_middle(client, engine, log):
    original = engine.stream

    def failing(*arguments):
        for place, token in enumerate(original(*arguments)):
            if place == 3:
                raise RuntimeError("broken")
            yield token

    engine.stream = failing
    seen = []
    stream = client.completions.create(model="fake", prompt="abcdef", stream=True)
    with pytest.raises(openai.APIError, match="generation failed"):
        seen.extend(chunk.choices[0].text for chunk in stream)
    assert "".join(seen) == "abc"


def test_a_lost_device_stays_lost(client, engine, running, log):
    from vkinductor.runtime.errors import DeviceLostError

    engine.error = DeviceLostError("gone")
    for _ in range(2):
        with pytest.raises(openai.InternalServerError, match="device was lost") as error:
            client.completions.create(model="fake", prompt="x")
        assert error.value.status_code == 503


def test_two_hundred_at_a_time(serve, log):
    engine = FakeEngine()

    async def ask(client, number):
        text = f"question {number}"
        if number % 2:
            stream = await client.completions.create(model="fake", prompt=text, stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream]) == text
        answer = await client.completions.create(model="fake", prompt=text)
        return answer.choices[0].text == text

    async def ask_all():
        async with openai.AsyncOpenAI(base_url=running.url, api_key="x", max_retries=0, timeout=300) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(200)))

    running = serve(engine)
    assert asyncio.run(ask_all()) == [True] * 200
    assert len(engine.prompts) == 200
    assert engine.threads == {"vkinductor-serve-worker"}
    assert len([line for line in log if " 200 " in line]) == 200


def test_a_full_queue_says_when_to_come_again(serve, engine):
    from vkinductor.serve.limits import Limits

    engine.gate.clear()
    running = serve(engine, limits=Limits(queue=2))
    with client_of(running) as client:
        ask = client.completions.create
        threads = [threading.Thread(target=ask, kwargs={"model": "fake", "prompt": "x"}) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_until(lambda: running.worker.busy and running.worker.waiting == 1)
        with pytest.raises(openai.RateLimitError, match="2 requests are waiting, which is the limit") as error:
            client.completions.create(model="fake", prompt="x")
        assert error.value.code == "queue_full"
        assert 1 <= int(error.value.response.headers["retry-after"]) <= 60
        engine.gate.set()
        for thread in threads:
            thread.join(30)


def test_an_api_key(serve, engine):
    running = serve(engine, key="right")
    with client_of(running, api_key="wrong") as client, pytest.raises(openai.AuthenticationError, match="API key"):
        client.models.list()
    with client_of(running, api_key="right") as client:
        assert [model.id for model in client.models.list()] == ["fake"]


def wait_until(true):
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)
