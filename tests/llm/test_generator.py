"""The driver without a compiler: batches, chunks, stops, draws, and what the cache holds of an earlier prompt."""

from __future__ import annotations

import pytest
import torch

from vkinductor.llm.errors import PromptTooLongError, UnknownOptionError
from vkinductor.llm.generate import reference_tokens
from vkinductor.llm.generator import Generator, chunk_lengths, shared_prefix
from vkinductor.llm.sampling import SamplingOptions


def make_prompt(length: int) -> list[int]:
    return torch.randint(3, 101, (length,), generator=torch.Generator().manual_seed(length)).tolist()


@pytest.fixture
def model(tiny_llama):
    return tiny_llama(num_hidden_layers=2)


@pytest.fixture
def generator(model):
    return Generator(model, 100, None, prefill_chunk=4, in_flight=2)


def expected(model, prompt: list[int], tokens: int) -> tuple[int, ...]:
    return reference_tokens(model, torch.tensor([prompt]), tokens)


@pytest.mark.parametrize("length", [1, 2, 5, 13])
def test_chunks_of_prompt_and_steps(model, generator, length):
    result = generator.generate(make_prompt(length), 20, steps=3)
    assert result.tokens == expected(model, make_prompt(length), 20)
    assert result.steps == 19


@pytest.mark.parametrize(("length", "most", "parts"), [(1, 4, [1]), (4, 4, [4]), (5, 4, [3, 2]), (9, 4, [3, 3, 3])])
def test_chunk_lengths(length, most, parts):
    assert chunk_lengths(length, most) == parts


def test_rows_padded_at_the_left(model):
    generator = Generator(model, 64, None, batch=4, prefill_chunk=4)
    for lengths in ((5, 11, 8, 1), (7, 2)):
        prompts = [make_prompt(length) for length in lengths]
        result = generator.generate(prompts, 12)
        assert result.rows == tuple(expected(model, prompt, 12) for prompt in prompts)


def test_a_row_ends_at_its_stop_and_the_others_go_on(model):
    prompts = [make_prompt(5), make_prompt(11)]
    full = [expected(model, prompt, 12) for prompt in prompts]
    stop = next(token for token in full[0][2:] if token not in full[1] and token not in full[0][:2])
    at = full[0].index(stop)
    generator = Generator(model, 64, None, batch=2)
    seen = list(generator.stream(prompts, SamplingOptions(tokens=12, stop=(stop,)), steps=5))
    assert generator.last.rows == (full[0][:at], full[1])
    assert [row[0] for row in seen] == [*full[0][:at], *[None] * (12 - at)]


def test_what_ran_behind_a_stop_is_dropped_and_does_no_harm(model, generator):
    full = expected(model, make_prompt(9), 20)
    at = next(place for place in range(2, 20) if full[place] not in full[:place])
    stopped = generator.generate(make_prompt(9), SamplingOptions(tokens=20, stop=(full[at],)), steps=7)
    assert stopped.tokens == full[:at]
    assert stopped.steps >= at
    again = generator.generate(make_prompt(9), 20)
    assert again.tokens == full
    assert again.reused_tokens == 8


def test_a_prompt_runs_from_where_it_differs(model, generator):
    prompt = make_prompt(13)
    first = generator.generate(prompt, 20).tokens
    longer = generator.generate([*prompt, *first[:5], 7], 10)
    assert longer.reused_tokens == 18
    assert longer.tokens == expected(model, [*prompt, *first[:5], 7], 10)
    other = generator.generate([*prompt[:6], 99, 98], 10)
    assert other.reused_tokens == 6
    assert other.tokens == expected(model, [*prompt[:6], 99, 98], 10)
    generator.forget()
    assert generator.generate(prompt, 1).reused_tokens == 0


def test_a_stream_that_is_closed_leaves_a_right_cache(model, generator):
    stream = generator.stream([make_prompt(9)], SamplingOptions(tokens=20), steps=4)
    taken = [next(stream)[0] for _ in range(3)]
    stream.close()
    full = expected(model, make_prompt(9), 20)
    assert tuple(taken) == full[:3]
    assert generator.generate([*make_prompt(9), *full[:2], 5], 6).tokens == expected(
        model, [*make_prompt(9), *full[:2], 5], 6
    )


def test_cancelling(generator):
    seen: list[int] = []
    options = SamplingOptions(tokens=20)
    for row in generator.stream([make_prompt(9)], options, steps=1, cancelled=lambda: len(seen) == 3):
        seen.append(row[0])
    assert len(seen) == 3


def test_draws(generator):
    options = SamplingOptions(tokens=20, temperature=0.9, top_k=30, top_p=0.95, seed=1)
    one = generator.generate(make_prompt(9), options, steps=1).tokens
    assert one == generator.generate(make_prompt(9), options, steps=6).tokens
    other = SamplingOptions(tokens=20, temperature=0.9, top_k=30, top_p=0.95, seed=2)
    assert one != generator.generate(make_prompt(9), other).tokens
    only = SamplingOptions(tokens=20, temperature=5.0, top_k=1)
    assert generator.generate(make_prompt(9), only).tokens == generator.generate(make_prompt(9), 20).tokens


def test_what_is_reported(generator, model):
    result = generator.generate(make_prompt(10), 21)
    assert result.weight_bytes == sum(p.nbytes for p in model.parameters()) + sum(b.nbytes for b in model.buffers()) - (
        0 if model.config.tie_word_embeddings else model.get_input_embeddings().weight.nbytes
    )
    heads, width, layers = 2, 16, 2
    assert result.cache_bytes == 2 * layers * heads * width * 4 * (10 + 10)
    rate = (result.weight_bytes + result.cache_bytes) * 20 / result.decode_seconds / 1e9
    assert result.gigabytes_per_second == pytest.approx(rate)
    assert result.prefill_tokens_per_second > 0


def test_refusals(generator, model):
    with pytest.raises(PromptTooLongError, match="exceed the context"):
        generator.generate(make_prompt(100), 100)
    for prompts in ([], [make_prompt(3)] * 2, [[]], [[101]], [[-1]]):
        with pytest.raises(UnknownOptionError):
            generator.stream(prompts, SamplingOptions(tokens=2))
    with pytest.raises(UnknownOptionError, match="steps"):
        generator.generate(make_prompt(3), 2, steps=0)
    with pytest.raises(UnknownOptionError, match="batch"):
        Generator(model, 64, None, batch=9)


def test_shared_prefix():
    assert [shared_prefix(*pair) for pair in (([], [1]), ([1, 2], [1, 3]), ([1, 2], [1, 2, 3]))] == [0, 1, 2]
