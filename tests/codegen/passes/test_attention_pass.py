"""Attention over a cache as models write it becomes one operator: what matches, what it gives, what does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import vkinductor
from vkinductor.device import attention

HEADS, GROUPS, WIDTH, KEYS, SIZE = 4, 2, 16, 64, 32


@pytest.fixture(autouse=True)
def whole() -> Iterator[None]:
    with attention.whole(), torch.no_grad():
        yield


def turned(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def neighbours(x: torch.Tensor) -> torch.Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def named(options: dict[str, Any]) -> str:
    """The same in each process: a function's own text has its address."""
    return ", ".join(f"{name}={getattr(value, '__name__', value)}" for name, value in options.items())


def chunks(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, turn: Any = turned) -> torch.Tensor:
    part, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    cos, sin = (t if t.dim() == 2 else t[:, None] for t in (cos, sin))
    part = part * cos + turn(part) * sin
    return torch.cat((part, rest), -1) if rest.shape[-1] else part


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Layer:
    """A layer's attention. The options are parts of it that models have or not."""

    def __init__(
        self, length: int = 1, rotary: int = WIDTH, turn: Any = turned, normed: bool = False, repeats: bool = True,
        window: int = 0, mask: str = "causal", only_q: bool = False,
    ) -> None:  # fmt: skip
        self.length, self.rotary, self.turn, self.normed, self.repeats = length, rotary, turn, normed, repeats
        self.window, self.mask, self.only_q = window, mask, only_q
        width = rotary or WIDTH
        angles = (9 + torch.arange(length))[:, None] * torch.rand(width // 2)
        angles = torch.cat((angles, angles), -1)
        angles = angles if turn is chunks else angles[None]
        self.arguments = [
            torch.randn(2, length, SIZE), *(torch.randn(SIZE, n * WIDTH) * 0.2 for n in (HEADS, GROUPS, GROUPS)),
            *(torch.randn(2, GROUPS, KEYS, WIDTH) for _ in range(2)), torch.tensor([9]), angles.cos(), angles.sin(),
            torch.rand(WIDTH), torch.rand(2, KEYS) > 0.3,
        ]  # fmt: skip

    def __call__(self, x, wq, wk, wv, keys, values, position, cos, sin, weight, padding):
        batch, length, _ = x.shape
        q, k, v = ((x @ w).view(batch, length, -1, WIDTH) for w in (wq, wk, wv))
        if self.normed:
            q, k = norm(q, weight), norm(k, weight)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        if self.rotary:
            q = rotate(q, cos, sin, self.turn)
            k = k if self.only_q else rotate(k, cos, sin, self.turn)
        index = position + torch.arange(length, device=x.device)
        keys.index_copy_(2, index, k)
        values.index_copy_(2, index, v)
        places = torch.arange(KEYS, device=x.device)
        seen = (places[None] <= index[:, None])[None, None]
        if self.window:
            seen = seen & (places[None] > index[:, None] - self.window)
        if self.mask == "padded":
            seen = seen & padding[:, None, None, :]
        if self.mask == "given":
            seen = padding[:, None, None, :].expand(batch, 1, length, KEYS)
        if self.repeats:
            keys, values = (
                c[:, :, None].expand(batch, GROUPS, HEADS // GROUPS, KEYS, WIDTH).reshape(batch, HEADS, KEYS, WIDTH)
                for c in (keys, values)
            )
        out = F.scaled_dot_product_attention(q, keys, values, seen, enable_gqa=not self.repeats)
        return out.transpose(1, 2).reshape(batch, length, -1)


def run(layer: Layer, **options: Any) -> int:
    """Compare two calls with the CPU, the caches too; returns the kernels of one."""
    own = [x.to("vulkan") for x in layer.arguments]
    here = [x.clone() for x in layer.arguments]
    f = torch.compile(layer.__call__, backend="vulkan", fullgraph=True, **{"dynamic": False, **options})
    for step in range(2):
        for arguments in (own, here):
            arguments[6] = arguments[6] + step
        vkinductor.reset_stats()
        got, want = f(*own), layer(*here)
        torch.testing.assert_close(got.cpu(), want, atol=2e-5, rtol=2e-5)
        for a, b in zip(own[4:6], here[4:6], strict=True):
            torch.testing.assert_close(a.cpu(), b, atol=2e-5, rtol=2e-5)
    assert not vkinductor.stats()["fallbacks"]
    return int(vkinductor.stats()["dispatches"])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"length": 3, "repeats": False},
        {"length": 2, "normed": True},
        {"rotary": 8},
        {"rotary": 0, "window": 5},
        {"length": 2, "turn": neighbours, "mask": "padded", "window": 4},
        {"length": 3, "mask": "given"},
        {"length": 2, "turn": chunks},
    ],
    ids=named,
)
def test_what_matches(matches, options):
    kernels = run(Layer(**options))
    assert [(m.pattern, m.missed) for m in matches] == [("attention step", "")]
    # Three projections, the step, and the counters where it has pieces; a mask that is left is made.
    assert kernels <= 5 + (options.get("mask", "causal") != "causal")


def test_what_stands_before_it_and_differs_stays_outside(matches):
    run(Layer(only_q=True))
    assert [m.missed for m in matches] == ["", "q and k are not rotated alike"]


def test_lengths_that_vary_do_not_match(matches):
    layer = Layer(length=5)
    torch._dynamo.mark_dynamic(layer.arguments[0], 1)
    own = [x.to("vulkan") for x in layer.arguments]
    torch._dynamo.mark_dynamic(own[0], 1)
    layer.rotary = 0
    f = torch.compile(layer.__call__, backend="vulkan", fullgraph=True)
    torch.testing.assert_close(f(*own).cpu(), layer(*layer.arguments), atol=2e-5, rtol=2e-5)
    assert [m.missed for m in matches] == ["the number of new keys varies"]


def test_keys_in_another_place_than_values_do_not_match(matches):
    def f(q, k, v, keys, values, a, b):
        keys.index_copy_(2, a, k)
        values.index_copy_(2, b, v)
        return F.scaled_dot_product_attention(q, keys, values)

    tensors = [torch.randn(1, 2, n, WIDTH) for n in (1, 1, 1, 8, 8)]
    positions = [torch.tensor([2]), torch.tensor([3])]
    own = [x.to("vulkan") for x in (*tensors, *positions)]
    got = torch.compile(f, backend="vulkan", fullgraph=True)(*own)
    torch.testing.assert_close(got.cpu(), f(*tensors, *positions), atol=2e-5, rtol=2e-5)
    assert [m.missed for m in matches] == ["keys and values go to different positions"]
