"""A llama as a user writes one in plain PyTorch, at the shapes of known models, with random weights.

Owns the model, its static key/value cache, and weights that are the same numbers on every system: cut on the CPU out of
one table of normal numbers (or of packed blocks) by a running offset, which takes as long as copying them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

# Odd, so that no two rows of a matrix begin at the same place of the table.
TABLE = (1 << 22) + 1
BLOCKS = (1 << 14) + 1
ROTARY_BASE = 10000.0
EPSILON = 1e-5
# Of a key/value cache before the first step: what is attended to is not zero.
FILLED = 1.0


@dataclass(frozen=True)
class Shape:
    """Sizes of a llama. ``tied``: the head multiplies by the embedding."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    tied: bool = False

    @property
    def head(self) -> int:
        """Elements of one head."""
        return self.hidden // self.heads


SHAPES = {
    "llama-1.1B": Shape(22, 2048, 32, 4, 5632, 32000),
    "llama3-1B": Shape(16, 2048, 32, 8, 8192, 128256, tied=True),
    "SmolLM2-135M": Shape(30, 576, 9, 3, 1536, 49152, tied=True),
    "llama3-8B": Shape(32, 4096, 32, 8, 14336, 128256),
}

# GGUF formats: ggml's number, weights a block, bytes a block, where a block keeps its scale as a half, and the half by
# which what is subtracted is scaled, with its ratio to the scale that makes the mean of random blocks zero.
FORMATS: dict[str, tuple[int, int, int, int, tuple[int, float] | None]] = {
    "Q4_0": (2, 32, 18, 0, None),
    "Q8_0": (8, 32, 34, 0, None),
    "Q4_1": (3, 32, 20, 0, (2, -7.5)),
    "Q4_K": (12, 256, 144, 0, (2, 7.5)),
    "Q6_K": (14, 256, 210, 208, None),
}
FLOAT16 = "float16"


class Weights:
    """Random weights in a fixed order: the n-th that is asked for is the same in every process."""

    def __init__(self, format: str = FLOAT16, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.format = format
        self._at = 0
        self._table = torch.randn(TABLE, generator=generator).half()
        if format != FLOAT16:
            self._blocks, self._deviation = _blocks(format, generator)

    def normal(self, *shape: int, deviation: float = 1.0) -> torch.Tensor:
        """Normal numbers in float16."""
        return self._cut(self._table * deviation, torch.Size(shape))

    def matrix(self, rows: int, columns: int, deviation: float) -> torch.Tensor:
        """Float16 [rows, columns], or the format's bytes [rows, bytes of columns weights]."""
        if self.format == FLOAT16:
            return self.normal(rows, columns, deviation=deviation)
        _, elements, nbytes, scale, offset = FORMATS[self.format]
        if columns % elements:
            raise ValueError(f"{self.format} has blocks of {elements}: rows of {columns} are none")
        blocks = self._blocks.clone()
        unit = deviation / self._deviation
        blocks[:, scale : scale + 2] = torch.tensor([unit]).half().view(torch.uint8)
        if offset:
            blocks[:, offset[0] : offset[0] + 2] = torch.tensor([unit * offset[1]]).half().view(torch.uint8)
        return self._cut(blocks.flatten(), torch.Size((rows, columns // elements * nbytes)), nbytes)

    def _cut(self, table: torch.Tensor, shape: torch.Size, unit: int = 1) -> torch.Tensor:
        flat = torch.empty(shape.numel(), dtype=table.dtype)
        size, at, done = table.numel(), self._at * unit % table.numel(), 0
        while done < flat.numel():
            n = min(size - at, flat.numel() - done)
            flat[done : done + n] = table[at : at + n]
            at, done = (at + n) % size, done + n
        self._at += flat.numel() // unit + 1
        return flat.view(shape)


def _blocks(format: str, generator: torch.Generator) -> tuple[torch.Tensor, float]:
    """Random blocks of a format, uint8 [BLOCKS, bytes], and the deviation of their weights where the scale is one."""
    from gguf import GGMLQuantizationType, quants

    number, _, nbytes, scale, offset = FORMATS[format]
    blocks = torch.randint(256, (BLOCKS, nbytes), generator=generator, dtype=torch.uint8)
    blocks[:, scale : scale + 2] = torch.tensor([1.0]).half().view(torch.uint8)
    if offset:
        blocks[:, offset[0] : offset[0] + 2] = torch.tensor([offset[1]]).half().view(torch.uint8)
    return blocks, float(quants.dequantize(blocks.numpy(), GGMLQuantizationType(number)).std())


class Linear(nn.Module):
    """x @ weight.T, the weight in halves or in a format's blocks."""

    def __init__(self, weights: Weights, columns: int, rows: int, gain: float = 1.0) -> None:
        super().__init__()
        self.number = FORMATS[weights.format][0] if weights.format != FLOAT16 else None
        self.register_buffer("weight", weights.matrix(rows, columns, gain * columns**-0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.number is None:
            return F.linear(x, self.weight)
        return torch.ops.vkinductor.quantized_linear(x, self.weight, self.number)


class Embedding(nn.Module):
    """Rows of a table, which may be a head's weight."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.table = linear

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = self.table.weight[tokens]
        if self.table.number is None:
            return rows
        return torch.ops.vkinductor.dequantize(rows, self.table.number, torch.float16)


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, in float32 inside."""

    def __init__(self, weights: Weights, width: int) -> None:
        super().__init__()
        self.register_buffer("weight", weights.normal(width, deviation=0.1) + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)
        return self.weight * wide.to(x.dtype)


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """The second half of the last dimension, negated, before the first."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class Attention(nn.Module):
    """Grouped-query attention over a static cache [1, kv_heads, context, head], written at ``positions``."""

    def __init__(self, weights: Weights, shape: Shape, context: int) -> None:
        super().__init__()
        width, kv = shape.heads * shape.head, shape.kv_heads * shape.head
        self.shape = shape
        self.q = Linear(weights, shape.hidden, width)
        self.k = Linear(weights, shape.hidden, kv)
        self.v = Linear(weights, shape.hidden, kv)
        self.out = Linear(weights, width, shape.hidden)
        for name in ("keys", "values"):
            self.register_buffer(name, weights.normal(1, shape.kv_heads, context, shape.head, deviation=FILLED))

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor
    ) -> torch.Tensor:
        def heads(projected: torch.Tensor) -> torch.Tensor:
            return projected.view(1, x.shape[1], -1, self.shape.head).transpose(1, 2)

        def rotated(projected: torch.Tensor) -> torch.Tensor:
            cos, sin = rotary
            return projected * cos + rotate_half(projected) * sin

        q, k, v = rotated(heads(self.q(x))), rotated(heads(self.k(x))), heads(self.v(x))
        self.keys.index_copy_(2, positions, k)
        self.values.index_copy_(2, positions, v)
        result = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask, enable_gqa=True)
        return self.out(result.transpose(1, 2).reshape(1, x.shape[1], -1))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, weights: Weights, shape: Shape) -> None:
        super().__init__()
        self.gate = Linear(weights, shape.hidden, shape.inner)
        self.up = Linear(weights, shape.hidden, shape.inner)
        self.down = Linear(weights, shape.inner, shape.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """Attention and MLP, each on the norm of what came before and added to it."""

    def __init__(self, weights: Weights, shape: Shape, context: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(weights, shape.hidden), Attention(weights, shape, context)
        self.mlp_norm, self.mlp = RMSNorm(weights, shape.hidden), MLP(weights, shape)

    def forward(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), *rest)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    """Tokens int64 [1, T] at ``positions`` int64 [T] to the last one's logits, [1, vocabulary] in float16."""

    def __init__(self, shape: Shape, context: int, format: str = FLOAT16, seed: int = 0) -> None:
        super().__init__()
        weights = Weights(format, seed)
        self.shape, self.context, self.format = shape, context, format
        self.head = Linear(weights, shape.hidden, shape.vocabulary)
        self.embedding = Embedding(self.head if shape.tied else Linear(weights, shape.hidden, shape.vocabulary))
        self.layers = nn.ModuleList(Layer(weights, shape, context) for _ in range(shape.layers))
        self.norm = RMSNorm(weights, shape.hidden)
        frequencies = ROTARY_BASE ** (-torch.arange(0, shape.head, 2).float() / shape.head)
        self.register_buffer("frequencies", frequencies)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        angles = positions[:, None].float() * self.frequencies
        angles = torch.cat((angles, angles), dim=-1)
        rotary = (angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        mask = torch.arange(self.context, device=tokens.device) <= positions[:, None]
        for layer in self.layers:
            x = layer(x, positions, rotary, mask)
        return self.head(self.norm(x[:, -1]))

    def decode(self, token: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The next token [1, 1] and its position [1], all on the device."""
        return self(token, position).argmax(-1, keepdim=True), position + 1

    def caches(self) -> Iterator[torch.Tensor]:
        """All keys and values."""
        for layer in self.layers:
            yield layer.attention.keys
            yield layer.attention.values

    def weight_bytes(self) -> int:
        """Bytes of what a step multiplies by: every weight but the embedding's rows."""
        linears = {id(m): m for m in self.modules() if isinstance(m, Linear)}
        if not self.shape.tied:
            linears.pop(id(self.embedding.table))
        return sum(m.weight.nbytes for m in linears.values())

    def step_bytes(self) -> int:
        """The least that a step at the end of the context reads."""
        return self.weight_bytes() + sum(cache.nbytes for cache in self.caches())
