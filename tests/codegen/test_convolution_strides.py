"""Strides of convolutions' results: what fake tensors claim is what eager operators give, cuDNN's rule."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import vkinductor
from vkinductor.codegen import heuristics

FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}
SPACES = {1: (9,), 2: (7, 9), 3: (4, 5, 6)}
# Dimensions, transposed, groups, and which of image and weight have their channels last.
CASES = [
    *((2, False, 1, last) for last in itertools.product((False, True), (False, True))),
    (2, False, 2, (False, False)),
    (2, False, 2, (True, False)),
    (2, True, 1, (True, True)),
    (2, True, 2, (False, True)),
    (1, False, 1, (False, False)),
    (3, False, 1, (False, False)),
    (3, False, 1, (False, True)),
]


def layer(dims: int, transposed: bool, groups: int) -> Callable[..., torch.Tensor]:
    function = getattr(F, f"conv{'_transpose' if transposed else ''}{dims}d")
    return lambda x, w: function(x, w, stride=2, padding=1, groups=groups)


def operands(dims: int, transposed: bool, groups: int, last: tuple[bool, bool]) -> list[torch.Tensor]:
    channels = (6, 4 // groups) if transposed else (4, 6 // groups)
    made = torch.randn(2, 6, *SPACES[dims]), torch.randn(*channels, *(3,) * dims)
    return [t.contiguous(memory_format=FORMATS[dims]) if here else t for t, here in zip(made, last, strict=True)]


def strides(f: Callable[..., Any], args: list[torch.Tensor]) -> list[tuple[int, ...]]:
    """Of the result and of the gradients."""
    args = [t.detach().requires_grad_() for t in args]
    result = f(*args)
    return [tuple(t.stride()) for t in (result, *torch.autograd.grad(result, args, torch.ones_like(result)))]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fakes_have_the_strides_of_results(case: tuple[int, bool, int, tuple[bool, bool]]) -> None:
    dims, transposed, groups, last = case
    f = layer(dims, transposed, groups)
    args = [t.to("vulkan") for t in operands(dims, transposed, groups, last)]
    with FakeTensorMode() as mode:
        fake = strides(f, [mode.from_tensor(t) for t in args])
    real = strides(f, args)
    assert real == fake
    result = f(*args)
    expected = FORMATS[dims] if any(last) else torch.contiguous_format
    assert result.is_contiguous(memory_format=expected)
    torch.testing.assert_close(result.cpu(), f(*[t.cpu() for t in args]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("last", [(True, False), (False, True)], ids=str)
def test_channels_last_takes_no_copy(last: tuple[bool, bool]) -> None:
    f = layer(2, False, 1)
    args = [t.to("vulkan") for t in operands(2, False, 1, last)]
    f(*args)
    vkinductor.reset_stats()
    f(*args)
    assert vkinductor.stats()["dispatches"] == 1


def test_sizes_that_vary() -> None:
    f = torch.compile(lambda x, w: F.relu(F.conv2d(x, w)), backend="vulkan", dynamic=True)
    for height in (7, 9):
        x, w = torch.randn(2, 6, height, 8).to(memory_format=torch.channels_last), torch.randn(4, 6, 3, 3)
        got = f(x.to("vulkan"), w.to("vulkan"))
        assert got.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(got.cpu(), F.relu(F.conv2d(x, w)), rtol=1e-4, atol=1e-4)


def test_training_with_sizes_that_vary() -> None:
    # The forward saves a weight with its channels last; the backward reads it with the strides of each size.
    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, weight, stride=2, padding=1, groups=2)

    f = torch.compile(step, backend="vulkan", fullgraph=True, dynamic=True)
    with heuristics.override(convolution_products=1), torch._dynamo.config.patch(error_on_recompile=True):
        for outputs, channels, height, width in ((76, 72, 9, 15), (32, 16, 12, 5)):
            image, weight = torch.randn(2, channels, height, 2 * width + 1), torch.randn(outputs, channels // 2, 3, 3)
            moved = [image.to("vulkan")[..., 1::2], weight.to("vulkan")]
            own = [t.requires_grad_() for t in (image[..., 1::2], weight)]
            want, result = step(*own), f(*[t.requires_grad_() for t in moved])
            up = torch.randn(want.shape)
            torch.testing.assert_close(result.detach().cpu(), want.detach(), rtol=1e-4, atol=1e-4)
            found = torch.autograd.grad(result, moved, up.to("vulkan"))
            for got, expected in zip(found, torch.autograd.grad(want, own, up), strict=True):
                torch.testing.assert_close(got.cpu(), expected, rtol=1e-3, atol=1e-3)


def test_other_devices_keep_torchs_rule() -> None:
    with FakeTensorMode() as mode:
        for device in ("cpu", "meta"):
            x, w = mode.from_tensor(torch.randn(2, 6, 7, 9, device=device)), torch.empty(4, 6, 3, 3, device=device)
            assert F.conv2d(x, w).is_contiguous()
