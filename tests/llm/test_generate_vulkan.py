"""Generation on the Vulkan device: CPU eager's tokens, few graphs, no fallback, tokens alone back from a step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch._dynamo.utils import counters as dynamo_counters

from vkinductor.llm.generate import Generator, reference_tokens
from vkinductor.llm.sampling import SamplingOptions
from vkinductor.runtime import context
from vkinductor.runtime.replay.program import Program

LENGTHS = (7, 12, 1, 40)
TOKENS = 50
TOKEN_BYTES = 8  # an int64


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    dynamo_counters.clear()
    yield
    torch._dynamo.reset()


def make_prompt(length: int) -> torch.Tensor:
    return torch.randint(3, 101, (1, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize(("device", "layers"), [("vulkan", 2), ("cpu", 1)])
def test_fifty_steps_for_prompts_of_many_lengths(tiny_llama, counters, device, layers):
    reference = tiny_llama(num_hidden_layers=layers)
    generator = Generator(copy.deepcopy(reference).to(device), 100, backend="vulkan")
    for length in LENGTHS:
        prompt = make_prompt(length)
        result = generator.generate(prompt, TOKENS, steps=1)
        assert result.tokens == reference_tokens(reference, prompt, TOKENS)
        assert result.fallbacks == {}
        assert result.counts_per_token["dispatches"] > 0
        if device == "vulkan" and length != LENGTHS[0]:  # compiling reads a few numbers back once
            assert result.counts_per_token["d2h_bytes"] == TOKEN_BYTES
            assert result.counts_per_token["h2d_bytes"] == 0
            assert result.counts_per_token["submits"] == 1
    assert dynamo_counters["stats"]["unique_graphs"] == 2
    assert not dynamo_counters["graph_break"]


def test_two_hundred_tokens_compile_twice_and_record_a_few_times(tiny_llama, counters):
    """Dynamo makes two graphs; what is recorded is the prefill and the decode step, once for each program in flight."""
    reference = tiny_llama(num_hidden_layers=1)
    generator = Generator(copy.deepcopy(reference).to("vulkan"), 220, backend="vulkan")
    prompt = make_prompt(9)
    expected = reference_tokens(reference, prompt, 200)
    result = generator.generate(prompt, 200, steps=1)
    assert result.tokens == expected
    assert dynamo_counters["stats"]["unique_graphs"] == 2
    first = counters.recordings
    assert 1 <= first <= Program.FEWEST_INSTANCES
    assert counters.replays >= 197  # one call compiles, one records
    assert result.counts_per_token["submits"] <= 1.1
    generator.forget()
    result = generator.generate(prompt, 200, steps=8)  # the prefill is recorded now, too
    assert result.tokens == expected
    assert result.counts_per_token["submits"] < 1
    assert counters.recordings <= first + 2 * Program.FEWEST_INSTANCES
    assert dynamo_counters["stats"]["unique_graphs"] == 2


def test_drawn_tokens_are_those_of_the_seed_however_many_steps_a_wait(tiny_llama, counters):
    reference = tiny_llama(num_hidden_layers=1)
    generator = Generator(copy.deepcopy(reference).to("vulkan"), 64, in_flight=2)
    options = SamplingOptions(tokens=20, temperature=0.8, top_k=20, top_p=0.9, seed=3)
    results = [generator.generate(make_prompt(9), options, steps=steps) for steps in (1, 5, 1)]
    assert len({result.tokens for result in results}) == 1
    assert results[0].tokens == Generator(reference, 64, None).generate(make_prompt(9), options).tokens
    last = results[-1].counts_per_token
    assert (last["submits"], last["d2h_bytes"], last["h2d_bytes"]) == (1, TOKEN_BYTES, 0)
    assert results[0].fallbacks == {}
    assert dynamo_counters["stats"]["unique_graphs"] == 2


def test_rows_of_a_batch_are_what_each_is_alone(tiny_llama, counters):
    reference = tiny_llama(num_hidden_layers=2)
    generator = Generator(copy.deepcopy(reference).to("vulkan"), 64, batch=3)
    prompts = [make_prompt(length)[0].tolist() for length in (5, 11, 8)]
    for rows in (prompts, prompts[1:]):
        result = generator.generate(rows, 12, steps=1)
        assert result.rows == tuple(reference_tokens(reference, torch.tensor([row]), 12) for row in rows)
        assert result.fallbacks == {}
    assert result.counts_per_token["d2h_bytes"] == 3 * TOKEN_BYTES
    assert dynamo_counters["stats"]["unique_graphs"] == 2


def test_later_prompts_compile_no_kernel(tiny_llama, counters, monkeypatch, tmp_path):
    monkeypatch.setenv("VKINDUCTOR_CACHE_DIR", str(tmp_path))  # else those of other tests
    context.reset()
    generator = Generator(tiny_llama(num_hidden_layers=1).to("vulkan"), 64, backend="vulkan")
    for length in (9, 23, 31):  # compiles; records; the sizes move to argument memory
        generator.generate(torch.randint(3, 101, (1, length)), 4)
    compiled = counters.kernels_compiled
    assert compiled > 0
    for length in (40, 17):
        generator.generate(torch.randint(3, 101, (1, length)), 4)
    assert counters.kernels_compiled == compiled
