"""The decode loop: right tokens, two graphs whatever the prompts, typed errors.

Compiled on the CPU without code generation; test_generate_vulkan.py runs the loop on the device.
"""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from vkinductor.llm.errors import PromptTooLongError, UnknownOptionError, UnsupportedModelError
from vkinductor.llm.generate import (
    CACHE_GRANULE,
    WARM_UP_TOKENS,
    Generator,
    check_length,
    parse_device,
    reference_tokens,
)

PROMPT_LENGTHS = (7, 12, 2, 1, 40)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def prompt(length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, 101, (1, length), generator=generator)


def test_fifty_steps_and_five_prompts_compile_twice(tiny_llama):
    model = tiny_llama(num_hidden_layers=1)
    counter = CompileCounterWithBackend("aot_eager")
    generator = Generator(model, 100, counter)
    for length in PROMPT_LENGTHS:
        result = generator.generate(prompt(length), 50)
        assert result.tokens == reference_tokens(model, prompt(length), 50)
        assert result.prompt_tokens == length
    assert counter.frame_count == 2


def test_eager_loop(tiny_llama):
    model = tiny_llama()
    generator = Generator(model, 40, backend=None)
    assert generator.generate(prompt(9), 30).tokens == reference_tokens(model, prompt(9), 30)


def test_all_heads_have_their_own_keys(tiny_llama):
    model = tiny_llama(num_key_value_heads=4, num_hidden_layers=1)
    generator = Generator(model, 40, "aot_eager")
    assert generator.generate(prompt(9), 20).tokens == reference_tokens(model, prompt(9), 20)


def test_low_precision_weights(tiny_llama):
    model = tiny_llama().to(torch.bfloat16)
    generator = Generator(model, 40, backend=None)
    assert generator.cache.layers[0].keys.dtype == torch.bfloat16
    assert len(generator.generate(prompt(9), 8).tokens) == 8


def test_a_shorter_prompt_after_a_longer_one_sees_nothing_of_it(tiny_llama):
    model = tiny_llama()
    generator = Generator(model, 100, backend=None)
    generator.generate(prompt(40), 50)
    assert generator.generate(prompt(3), 20).tokens == reference_tokens(model, prompt(3), 20)


def test_compile_reports_what_it_made(tiny_llama):
    stages = []

    def stage(name):
        stages.append(name)
        return torch.no_grad()  # any context manager

    generator = Generator(tiny_llama(num_hidden_layers=1), 9 + WARM_UP_TOKENS, "aot_eager")
    report = generator.compile(prompt(9), stage)
    assert report.graphs == 2
    assert report.seconds > 0
    assert ["prefill" in stages[0], "decode" in stages[1]] == [True, True]


def test_tokens_arrive_one_by_one(tiny_llama):
    seen = []
    generator = Generator(tiny_llama(), 20, backend=None)
    result = generator.generate(prompt(5), 6, on_token=seen.append)
    assert tuple(seen) == result.tokens
    assert result.tokens_per_second > 0


def test_one_token_has_no_decode_rate(tiny_llama):
    result = Generator(tiny_llama(), 20, backend=None).generate(prompt(5), 1)
    assert len(result.tokens) == 1
    assert result.tokens_per_second == 0


def test_cache_length_is_rounded_up_and_full_use_of_it_works(tiny_llama):
    model = tiny_llama()
    generator = Generator(model, 20, backend=None)
    assert generator.cache.length == CACHE_GRANULE
    tokens = CACHE_GRANULE - 5
    assert generator.generate(prompt(5), tokens).tokens == reference_tokens(model, prompt(5), tokens)


def test_too_long_prompt(tiny_llama):
    generator = Generator(tiny_llama(), 64, backend=None)
    with pytest.raises(PromptTooLongError, match="60 tokens and 5 new ones exceed the context of 64"):
        generator.generate(prompt(60), 5)
    assert len(generator.generate(prompt(60), 4).tokens) == 4  # the next call works


@pytest.mark.parametrize(("length", "tokens"), [(5, 0), (5, -1), (0, 5)])
def test_nothing_to_do(length, tokens):
    with pytest.raises(UnknownOptionError):
        check_length(length, tokens, 64)


@pytest.mark.parametrize("kinds", [("sliding_attention",) * 3, ("sliding_attention", "full_attention") * 2])
def test_sliding_windows_shorter_than_the_text(kinds):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=len(kinds),
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=101,
        use_sliding_window=True,
        sliding_window=8,
        layer_types=list(kinds),
        initializer_range=0.2,
    )
    model = Qwen2ForCausalLM(config).eval()
    generator = Generator(model, 64, backend=None)
    assert generator.generate(prompt(13), 30).tokens == reference_tokens(model, prompt(13), 30)


def test_other_kinds_of_layers_are_refused(tiny_llama):
    model = tiny_llama()
    model.config.layer_types = ["chunked_attention", "full_attention"]
    with pytest.raises(UnsupportedModelError, match="chunked_attention"):
        Generator(model, 64, backend=None)


@pytest.mark.parametrize("name", ["gpu", "cuda", "vulkan:x", "cpu:0", ""])
def test_unknown_device(name):
    with pytest.raises(UnknownOptionError, match="vulkan, cpu"):
        parse_device(name)
