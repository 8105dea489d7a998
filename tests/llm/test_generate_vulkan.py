"""The decode loop on the Vulkan device: CPU eager's tokens, two graphs, no fallback, one token back a step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch._dynamo.utils import counters as dynamo_counters

from vkinductor.llm.generate import Generator, reference_tokens
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


@pytest.mark.parametrize("device", ["vulkan", "cpu"])
def test_fifty_steps_for_prompts_of_many_lengths(tiny_llama, counters, device):
    reference = tiny_llama()
    generator = Generator(copy.deepcopy(reference).to(device), 100, backend="vulkan")
    for length in LENGTHS:
        prompt = torch.randint(3, 101, (1, length), generator=torch.Generator().manual_seed(length))
        result = generator.generate(prompt, TOKENS)
        assert result.tokens == reference_tokens(reference, prompt, TOKENS)
        assert result.fallbacks == {}
        assert result.counts_per_token["dispatches"] > 0
        if device == "vulkan" and length != LENGTHS[0]:  # compiling reads a few numbers back once
            assert result.counts_per_token["d2h_bytes"] == TOKEN_BYTES
            assert result.counts_per_token["h2d_bytes"] == 0
    assert dynamo_counters["stats"]["unique_graphs"] == 2
    assert not dynamo_counters["graph_break"]


def test_two_hundred_tokens_compile_twice_and_record_a_few_times(tiny_llama, counters):
    """Dynamo makes two graphs; what is recorded is the prefill and the decode step, once for each program in flight."""
    generator = Generator(tiny_llama().to("vulkan"), 220, backend="vulkan")
    prompt = torch.randint(3, 101, (1, 9), generator=torch.Generator().manual_seed(0))
    result = generator.generate(prompt, 200)
    assert result.tokens == reference_tokens(tiny_llama(), prompt, 200)
    assert dynamo_counters["stats"]["unique_graphs"] == 2
    first = counters.recordings
    assert 1 <= first <= Program.FEWEST_INSTANCES
    assert counters.replays >= 197  # one call compiles, one records
    assert result.counts_per_token["submits"] <= 2
    generator.generate(prompt, 200)  # the prefill is recorded now, too
    assert counters.recordings <= first + Program.FEWEST_INSTANCES
    assert dynamo_counters["stats"]["unique_graphs"] == 2


def test_later_prompts_compile_no_kernel(tiny_llama, counters, monkeypatch, tmp_path):
    monkeypatch.setenv("VKINDUCTOR_CACHE_DIR", str(tmp_path))  # else those of other tests
    context.reset()
    generator = Generator(tiny_llama().to("vulkan"), 64, backend="vulkan")
    for length in (9, 23, 31):  # compiles; records; the sizes move to argument memory
        generator.generate(torch.randint(3, 101, (1, length)), 4)
    compiled = counters.kernels_compiled
    assert compiled > 0
    for length in (40, 17):
        generator.generate(torch.randint(3, 101, (1, length)), 4)
    assert counters.kernels_compiled == compiled
