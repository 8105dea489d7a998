"""`generate` of transformers itself, around a compiled forward: CPU eager's tokens, few graphs, no fallback."""

from __future__ import annotations

import copy

import pytest
import torch
from torch._dynamo.utils import counters as dynamo_counters

STEPS = 50
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 101,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}


@pytest.fixture(autouse=True)
def fresh_counts():
    dynamo_counters.clear()


def make(family: str):
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SHAPE)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def prompts(rows: int, length: int) -> dict[str, torch.Tensor]:
    """Each row has one token of padding more than the one before."""
    ids = torch.randint(3, 101, (rows, length), generator=torch.Generator().manual_seed(length))
    padding = torch.arange(length)[None] < torch.arange(rows)[:, None]
    return {"input_ids": ids.masked_fill(padding, 0), "attention_mask": (~padding).long()}


@pytest.mark.parametrize(
    ("family", "cache", "rows"), [("Llama", "static", 1), ("Qwen2", "static", 3), ("Gemma", "dynamic", 2)]
)
def test_greedy_tokens_are_those_of_the_cpu(counters, family, cache, rows):
    reference = make(family)
    model = copy.deepcopy(reference).to("vulkan")
    model.forward = torch.compile(model.forward, backend="vulkan")
    options = {"max_new_tokens": STEPS, "do_sample": False}
    compiled = []
    for length in (9, 14, 6):
        inputs = prompts(rows, length)
        expected = reference.generate(**inputs, **options)
        before = dynamo_counters["stats"]["unique_graphs"]
        actual = model.generate(
            **{name: value.to("vulkan") for name, value in inputs.items()},
            **options,
            **({"cache_implementation": "static"} if cache == "static" else {}),
        )
        assert actual.tolist() == expected.tolist()
        compiled.append(dynamo_counters["stats"]["unique_graphs"] - before)
    # The first lengths are constants, others are symbolic from then on. A growing cache begins empty.
    assert compiled == ([2, 2, 0] if cache == "static" else [3, 2, 0])
    assert counters.fallbacks == {}
    assert not dynamo_counters["graph_break"]


def test_drawn_tokens_in_half_precision(counters):
    model = make("Llama").to(torch.bfloat16).to("vulkan")
    model.forward = torch.compile(model.forward, backend="vulkan")
    inputs = {name: value.to("vulkan") for name, value in prompts(2, 9).items()}
    options = {"max_new_tokens": 8, "do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9}
    drawn = []
    for _ in range(2):
        torch.manual_seed(5)
        drawn.append(model.generate(**inputs, **options, cache_implementation="static").tolist())
    assert drawn[0] == drawn[1]
    assert all(0 <= token < SHAPE["vocab_size"] for row in drawn[0] for token in row)
    assert counters.fallbacks == {}
