"""Windows of three dimensions, adaptive and fractional ones: values, positions and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import check, compiled, on_device, same

import vkinductor

SAMPLES = torch.tensor([[[0.3, 0.6, 0.1], [0.1, 0.9, 0.7], [0.5, 0.2, 0.2]]]).expand(2, 3, 3).contiguous()


def fractional(dims: int) -> Callable[..., Any]:
    pool = F.fractional_max_pool2d if dims == 2 else F.fractional_max_pool3d

    def f(x: Any) -> Any:
        samples = SAMPLES[..., :dims].contiguous().to(x.device)
        return pool(x, 2, (3, 4, 5)[:dims], return_indices=True, _random_samples=samples)

    return f


CASES: dict[str, tuple[Callable[..., Any], int]] = {
    "max": (lambda x: F.max_pool3d(x, 3, 2, 1, return_indices=True), 3),
    "adaptive_max_2d": (lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True), 2),
    "adaptive_max_3d": (lambda x: F.adaptive_max_pool3d(x, (3, 4, 5), return_indices=True), 3),
    "adaptive_avg_2d": (lambda x: (F.adaptive_avg_pool2d(x, (3, 12)),), 2),
    "adaptive_avg_3d": (lambda x: (F.adaptive_avg_pool3d(x, (3, 4, 12)),), 3),
    "adaptive_avg_2d_large": (lambda x: (F.adaptive_avg_pool2d(x[..., :8].repeat(1, 1, 2, 2), 3),), 2),
    "avg_2d_large": (lambda x: (F.avg_pool2d(x, (6, 7), (2, 1), 3, True, False),), 2),
    "avg_2d_divisor": (lambda x: (F.avg_pool2d(x, 3, 1, (1,), divisor_override=2),), 2),
    "fractional_2d": (fractional(2), 2),
    "fractional_3d": (fractional(3), 3),
}


# Averages of three dimensions with a symbol for each size and stride take half a minute: two dimensions are eager.
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    f, dims = CASES[name]
    run = compiled(f, dynamic=False) if name == "adaptive_avg_3d" else f
    x = torch.randn(2, 3, *(7, 8, 9)[:dims]).requires_grad_()
    (device,) = on_device([x])
    vkinductor.reset_stats()
    results = []
    for leaf in (device, x):
        made = (run if leaf is device else f)(leaf)
        made[0].backward(torch.linspace(-1, 1, made[0].numel()).view(made[0].shape).to(leaf.device))
        results.append([*(t.detach() for t in made), leaf.grad])
        assert not vkinductor.stats()["fallbacks"]
    same(*results, rtol=1e-5, atol=1e-5)


def test_adaptive_windows_of_varying_sizes() -> None:
    """One program for all sizes."""
    area = compiled(lambda x: F.interpolate(x, scale_factor=0.6, mode="area"), dynamic=True)
    pool = compiled(lambda x: F.adaptive_max_pool2d(x, 3, True), dynamic=True)
    for n in (7, 9, 14):
        x = torch.randn(2, 3, n, n + 1)
        same(area(*on_device([x])), F.interpolate(x, scale_factor=0.6, mode="area"))
        same(pool(*on_device([x])), F.adaptive_max_pool2d(x, 3, True))
    assert not vkinductor.stats()["fallbacks"]


def test_dilated_max_positions() -> None:
    """Padding never wins, not even over -inf; dilated windows count their own elements."""
    x = torch.randn(3, 7, 8, 9)
    x[0] = -torch.inf
    x[1, 2, 3, 4] = torch.nan
    options = {"dilation": 2, "padding": 1, "ceil_mode": True, "return_indices": True}
    check(lambda x: F.max_pool3d(x, 3, 2, **options), x)


def test_infinity_stays_in_its_window() -> None:
    x = torch.randn(1, 2, 5, 6, 7)
    x[0, 0, 0, 0, 0] = torch.inf
    check(lambda x: F.adaptive_avg_pool3d(x, 3), x, tolerance={"rtol": 1e-5, "atol": 1e-5})


def test_empty_batch() -> None:
    x = torch.randn(0, 1, 4, 5, 4).requires_grad_()
    (device,) = on_device([x])
    y = F.fractional_max_pool3d(device, (2, 2, 1), 2)
    y.sum().backward()
    assert (y.shape, device.grad.shape) == ((0, 1, 2, 2, 2), x.shape)
    assert not vkinductor.stats()["fallbacks"]


def test_one_kernel() -> None:
    g = compiled(lambda x: F.max_pool3d(x, 2))
    x = torch.randn(2, 3, 6, 6, 6)
    same(g(*on_device([x])), F.max_pool3d(x, 2))
