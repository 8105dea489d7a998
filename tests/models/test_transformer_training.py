"""Training: a four-layer transformer learns on Vulkan as it does on the CPU, step by step.

Of CPU tensors two layers: what becomes of them depends on no depth, and compiling each layer takes seconds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

import vkinductor  # noqa: F401 - autograd starts a thread for each device known at the process's first backward

WIDTH, HEADS, VOCABULARY = 64, 4, 64
STEPS, BATCH, LENGTH = 50, 4, 16
LOSS_TOLERANCE = 1e-3


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.norm_mlp = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(rows, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm_mlp(x))))


class LanguageModel(nn.Module):
    """Embedding, blocks, and a loss over the next token."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.blocks(self.tokens(tokens) + self.positions(places))
        logits = self.head(self.norm(hidden))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Sequences that count upward from a random start: something a few steps can learn."""
    generator = torch.Generator().manual_seed(1)
    starts = torch.randint(0, VOCABULARY, (STEPS, BATCH, 1), generator=generator)
    data = (starts + torch.arange(LENGTH + 1)) % VOCABULARY
    return [(rows[:, :-1], rows[:, 1:]) for rows in data]


def train(model: nn.Module, forward: Callable[..., torch.Tensor], device: str, watch=nullcontext) -> list[float]:
    """Train for STEPS steps of AdamW and return all losses.

    `forward` maps tokens and targets to the loss; forward and backward run inside the context `watch()`.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    losses = []
    for tokens, targets in batches():
        tokens, targets = tokens.to(device), targets.to(device)
        optimizer.zero_grad()
        with watch():
            loss = forward(tokens, targets)
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("device", "layers"), [("cpu", 2), ("vulkan", 4)])
def test_fifty_steps(counters, device, layers):
    torch.manual_seed(0)
    start = LanguageModel(layers)
    trained = copy.deepcopy(start)
    expected = train(trained, trained, "cpu")
    assert expected[-1] < expected[0] / 2  # it does learn
    model = copy.deepcopy(start).to(device)
    compiled = torch.compile(model, backend="vulkan", fullgraph=True)

    @contextmanager
    def no_fallback():
        before = dict(counters.fallbacks)
        yield
        assert counters.fallbacks == before

    losses = train(model, compiled, device, no_fallback)
    assert counters.dispatches > STEPS
    worst = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    assert worst < LOSS_TOLERANCE, f"losses differ by up to {worst}"
