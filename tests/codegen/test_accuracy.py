"""Norms and softmax: one kernel each, float32 within 4 units in the last place of the row's maximum."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled, dispatches, on_device

from vkinductor.codegen import heuristics

LENGTHS = (64, 200, 1000, 8192)


def rms_norm_residual(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = x + r
    return F.rms_norm(h, h.shape[-1:], w, 1e-6), h


def rms_norm_by_hand(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = x + r
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * w, h


def layer_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
    return (F.layer_norm(x, x.shape[-1:], w, r[0]),)


def softmax(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.softmax(x, -1),)


def log_softmax(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.log_softmax(x, -1),)


FUNCTIONS = [rms_norm_residual, rms_norm_by_hand, layer_norm, softmax, log_softmax]


def units_in_the_last_place(actual: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error, in float32 units in the last place of each row's largest magnitude."""
    top = exact.abs().amax(-1, keepdim=True).float()
    unit = (torch.nextafter(top, torch.tensor(torch.inf)) - top).double()
    return float(((actual.double() - exact).abs() / unit).max())


def hold(f: Callable[..., tuple[torch.Tensor, ...]], rows: int, length: int) -> None:
    args = [torch.randn(rows, length), torch.randn(rows, length) * 0.5, torch.rand(length) + 0.5]
    args[0] += 3.0
    exact = f(*[a.double() for a in args])
    g = compiled(f)
    moved = on_device(args)
    result = g(*moved)
    for actual, reference in zip(result, exact, strict=True):
        assert units_in_the_last_place(actual.cpu(), reference) <= 4
    assert dispatches(g, *moved) == 1


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("length", LENGTHS)
def test_one_kernel_and_exact(f: Callable[..., tuple[torch.Tensor, ...]], length: int) -> None:
    hold(f, 4, length)


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("lanes", "elements"), [(256, 8), (256, 0), (64, 0)])
def test_in_the_layouts_of_a_gpu(f: Callable[..., tuple[torch.Tensor, ...]], lanes: int, elements: int) -> None:
    with heuristics.override(lanes=lanes, rows=1, elements=elements):
        hold(f, 3, 2048)


@pytest.mark.parametrize("f", [softmax, log_softmax], ids=lambda f: f.__name__)
def test_online(f: Callable[..., tuple[torch.Tensor, ...]]) -> None:
    with heuristics.override(lanes=256, rows=1, elements=0, reads_dominate=True):
        hold(f, 3, 8192)
