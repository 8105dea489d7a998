"""Softmax of rows in registers: what is left out because the sum decides, and that it is not where it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled, name_of, same

from vkinductor.codegen import heuristics

IN_REGISTERS = {"lanes": 16, "rows": 2, "elements": 16, "width": 4}


def run(f: Callable[..., Any], x: torch.Tensor, **tolerance: float) -> str:
    """``f`` of rows in registers, compared with double precision; the generated code."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    with heuristics.override(reads_dominate=True, **IN_REGISTERS):
        got, code = run_and_get_code(compiled(f), x.to("vulkan"))
    want = torch.utils._pytree.tree_map(lambda t: t.to(x.dtype), f(x.double()))
    same(got, want, **tolerance)
    return "\n".join(code)


def special() -> torch.Tensor:
    x = torch.randn(16, 256) * 8
    x[0, 5] = float("nan")
    x[1, 7] = float("inf")
    x[2] = -float("inf")
    x[3, :200] = -float("inf")
    x[4, 9], x[4, 10] = float("nan"), float("inf")
    x[5, 3], x[6, 4], x[7] = 3e38, -3e38, 3e38
    return x


def softmax(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x, -1)


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    return F.log_softmax(x, -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=name_of)
@pytest.mark.parametrize("f", [softmax, log_softmax], ids=lambda f: f.__name__)
def test_special_values(f: Callable[..., Any], dtype: torch.dtype) -> None:
    code = run(f, special().to(dtype))
    assert "vk_max" not in code
    assert ("vk_exp_near(" in code) == (dtype != torch.float64)


def test_powers_that_are_only_summed() -> None:
    """Those of log_softmax come from the device's exp2 as they are; softmax divides each by the sum."""

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return log_softmax(x), softmax(x)

    with heuristics.override(device_exp2=True):
        for f, summed in ((log_softmax, True), (both, False)):
            for x in (special(), torch.randn(16, 256) * 3):
                code = run(f, x)
                assert ("vk_exp_in_sum(" in code) == summed
                assert ("vk_exp_near(" in code) != summed


def test_a_maximum_that_is_used_elsewhere_has_its_nan() -> None:
    def with_maximum(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        top = x.amax(-1, keepdim=True)
        power = (x - top).exp()
        return power / power.sum(-1, keepdim=True), top

    def with_difference(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        difference = x - x.amax(-1, keepdim=True)
        return difference.exp() / difference.exp().sum(-1, keepdim=True), difference

    def with_powers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        power = (x - x.amax(-1, keepdim=True)).exp()
        return power / power.sum(-1, keepdim=True), power * 2

    for f in (with_maximum, with_difference, with_powers):
        assert "vk_max" in run(f, special())


def test_one_kernel_of_three_loops() -> None:
    code = run(softmax, torch.randn(16, 256))
    assert code.count("vulkan_kernel(") == 1
    assert code.count("for (int step = 0") == 3
    assert code.count("vk_exp_near(tmp") == 1


def test_short_rows_have_two_loads_a_lane() -> None:
    from cards import card

    for nbytes, width in ((2, 8), (4, 4)):
        access = heuristics.RowAccess(nbytes, nbytes, 1, width=16)
        for row in (64, 128, 256):
            layout = heuristics.reduction(card(), row, row, 65536, access=access)
            assert layout.width == width
            assert layout.lanes * layout.elements == row
            assert layout.elements == 2 * width
