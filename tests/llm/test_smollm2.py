"""Real weights: the first layers of SmolLM2-135M and its head say on the device what they say on the CPU.

The whole model takes minutes on a software driver: `python -m vkinductor generate` compares it.
"""

from __future__ import annotations

import copy

import pytest
import torch

from vkinductor.llm import load
from vkinductor.llm.errors import ModelNotFoundError
from vkinductor.llm.generate import Generator, reference_tokens

LAYERS = 2
TOKENS = 12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_greedy_tokens_are_those_of_the_cpu(counters, dtype):
    try:
        load.default_model()
    except ModelNotFoundError as error:
        pytest.skip(str(error))
    torch._dynamo.reset()
    loaded = load.load(None, dtype, packed=False)
    reference = loaded.model
    del reference.model.layers[LAYERS:]
    reference.config.num_hidden_layers = LAYERS
    reference.config.layer_types = None
    prompt = load.encode_prompt(loaded.tokenizer, "What is the capital of France?")
    result = Generator(copy.deepcopy(reference).to("vulkan"), 64).generate(prompt, TOKENS, steps=3)
    assert result.tokens == reference_tokens(reference, prompt, TOKENS)
    assert result.fallbacks == {}
