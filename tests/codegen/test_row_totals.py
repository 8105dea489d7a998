"""Sums of what each row gives: the row's kernel computes it, and the sum reads it alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled, on_device, same

from vkinductor.codegen import heuristics

IN_REGISTERS = {"lanes": 16, "rows": 2, "elements": 16, "width": 4}


def kernels(f: Callable[..., Any], *args: torch.Tensor, **forced: Any) -> list[str]:
    """The kernels of ``f`` as on a GPU, whose result has to be right."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    with heuristics.override(reads_dominate=True, **forced):
        got, code = run_and_get_code(compiled(f), *on_device(args))
    same(got, f(*args), rtol=1e-5, atol=1e-5)
    return "\n".join(code).split("vulkan_kernel(")[1:]


def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, target)


def test_a_row_has_its_loss() -> None:
    target = torch.randint(256, (40,))
    target[7] = target[9] = -100
    rows, total = kernels(loss, torch.randn(40, 256), target, **IN_REGISTERS)
    assert "vk_log(" in rows
    assert "vk_exp" in rows
    assert "vk_log(" not in total
    assert "Buffer_int64_t" in rows  # the target's place, which the other only compares


@pytest.mark.parametrize(
    ("f", "count"),
    [
        (lambda x: x.square().sum(-1).sqrt().mean(), 2),
        (lambda x: (x.amax(-1, keepdim=True) * 2).sum(), 2),
        # No row is reduced before.
        (lambda x: (x * 2).sum(), 1),
        # Not one result.
        (lambda x: (x.view(8, 5, -1).amax(-1) * 2).sum(0), 2),
    ],
)
def test_other_sums(f: Callable[..., Any], count: int) -> None:
    assert len(kernels(f, torch.randn(40, 64))) == count


def test_its_gradient() -> None:
    x, target = torch.randn(40, 256), torch.randint(256, (40,))

    def gradient(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(loss(leaf, target), leaf)[0]

    with heuristics.override(reads_dominate=True, **IN_REGISTERS):
        torch._dynamo.reset()
        moved = on_device([x])[0].requires_grad_()
        (got,) = torch.autograd.grad(compiled(loss)(moved, *on_device([target])), moved)
    same(got, gradient(x, target), rtol=1e-5, atol=1e-7)
