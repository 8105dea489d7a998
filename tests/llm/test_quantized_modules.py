"""Layers over packed rows: what they compute, how they move, which rows they refuse."""

from __future__ import annotations

import pytest
import torch
from gguf_writing import Q, gguf, random_blocks
from torch import nn

from vkinductor.device.quantized import FORMATS, dequantize_reference
from vkinductor.llm.errors import ModelFormatError, UnsupportedModelError
from vkinductor.llm.quantized import Embedding, QuantizedEmbedding, QuantizedLinear


def packed(format: int, rows: int = 6, columns: int = 256) -> torch.Tensor:
    if Q(format).name.startswith(("Q2", "Q3", "Q4_K", "Q5_K", "Q6", "IQ")):
        return torch.from_numpy(random_blocks(format, rows, columns, scale=0.05))
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    return torch.from_numpy(gguf.quants.quantize(weight.numpy(), Q(format)))


@pytest.mark.parametrize("format", FORMATS, ids=lambda number: FORMATS[number].name)
def test_every_format(format):
    rows = packed(format)
    weight = dequantize_reference(rows, format)
    bias = torch.randn(6)
    layer = QuantizedLinear(rows, format, bias)
    x = torch.randn(2, 3, 256)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, weight, bias))
    assert torch.equal(layer.dequantized(), weight)
    embedding = QuantizedEmbedding(rows, format)
    tokens = torch.tensor([[5, 0], [2, 5]])
    assert torch.equal(embedding(tokens, torch.float32), weight[tokens])
    assert torch.equal(embedding(tokens, torch.float16), weight[tokens].half())
    torch.testing.assert_close(embedding.project(x), x @ weight.T)


def test_half_leaves_the_bytes():
    layer = QuantizedLinear(packed(Q.Q4_0), Q.Q4_0, torch.randn(6))
    before = layer.packed.clone()
    layer.half()
    assert layer.packed.dtype == torch.uint8
    assert torch.equal(layer.packed, before)
    assert layer.bias is not None
    assert layer.bias.dtype == torch.float16
    assert layer(torch.randn(1, 256).half()).dtype == torch.float16
    assert "256 -> 6, Q4_0, bias=True" in repr(layer)


def test_embedding_of_floats_has_the_same_interface():
    weight = torch.randn(6, 32)
    embedding = Embedding(weight)
    assert torch.equal(embedding(torch.tensor([3]), torch.float16), weight[[3]].half())
    assert torch.equal(embedding.project(weight), weight @ weight.T)


@pytest.mark.parametrize(
    ("rows", "format"),
    [
        (torch.zeros(2, 19, dtype=torch.uint8), Q.Q4_0),  # a block is 18 bytes
        (torch.zeros(2, 18), Q.Q4_0),
        (torch.zeros(2, 3, 18, dtype=torch.uint8), Q.Q4_0),
    ],
)
def test_rows_that_are_no_whole_blocks(rows, format):
    with pytest.raises(ModelFormatError, match="whole blocks of 18 bytes"):
        QuantizedLinear(rows, format)


def test_unknown_format():
    with pytest.raises(UnsupportedModelError, match="Q4_0"):
        QuantizedLinear(torch.zeros(2, 18, dtype=torch.uint8), 16)
