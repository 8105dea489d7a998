"""Real weights, SmolLM2-135M: packed rows say what floats say, and the first layers with the head say on the device
what they say on the CPU.

The whole model takes minutes on a software driver: `python -m vkinductor generate` compares it.
"""

from __future__ import annotations

import copy

import pytest
import torch

from vkinductor.llm import load
from vkinductor.llm.errors import ModelNotFoundError
from vkinductor.llm.generate import Generator, reference_tokens

QUESTION = "What is the capital of France?"
TOKENS = 12


@pytest.fixture(scope="module")
def floats():
    """The model of `transformers` in float32: expanding the weights takes longer than most of what is asked of it."""
    try:
        load.default_model()
    except ModelNotFoundError as error:
        pytest.skip(str(error))
    return load.load(None, packed=False)


def first_layers(model, count: int):
    """A copy of the first ``count`` layers and what stands around them."""
    whole = model.model.layers
    model.model.layers = whole[:count]
    try:
        part = copy.deepcopy(model)
    finally:
        model.model.layers = whole
    part.config.num_hidden_layers = count
    part.config.layer_types = None
    return part


def test_packed_rows_give_the_tokens_of_floats(floats, check_against_floats):
    assert "Paris" in check_against_floats(load.default_model(), QUESTION, 12, floats)


@pytest.mark.parametrize(("dtype", "layers"), [(torch.float32, 2), (torch.float16, 1)])
def test_greedy_tokens_are_those_of_the_cpu(floats, counters, dtype, layers):
    torch._dynamo.reset()
    reference = first_layers(floats.model, layers).to(dtype)
    prompt = load.encode_prompt(floats.tokenizer, QUESTION)
    result = Generator(copy.deepcopy(reference).to("vulkan"), 64).generate(prompt, TOKENS, steps=3)
    assert result.tokens == reference_tokens(reference, prompt, TOKENS)
    assert result.fallbacks == {}
