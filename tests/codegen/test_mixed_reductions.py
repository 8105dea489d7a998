"""Reductions over rows and sums over columns in one kernel, sums over columns in parts: that they are there, and right.

Layouts of a GPU are forced: a CPU driver has none of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cards import card
from compiled import compiled, name_of, on_device, same

from vkinductor.codegen import heuristics

SMALL = {"reads_dominate": True, "fewest_with_sums": 1}


def gradients(f: Callable[..., Any], *args: torch.Tensor, **layout: int) -> str:
    """The gradients of ``f`` with a forced layout, compared with double precision; the code of the backward."""
    from torch._inductor.utils import run_fw_bw_and_get_code

    torch._dynamo.reset()
    weights = torch.linspace(-1, 1, args[0].numel()).view(args[0].shape).to(args[0].dtype)
    device, upstream = on_device([t.clone().requires_grad_() for t in args]), weights.to("vulkan")
    with heuristics.override(**SMALL, **layout):
        run = compiled(f)
        _, code = run_fw_bw_and_get_code(lambda: (run(*device) * upstream).sum())
    exact = [t.double().requires_grad_() for t in args]
    (f(*exact) * weights.double()).sum().backward()
    limit = 1e-5 if args[0].dtype == torch.float32 else 2e-2
    same([t.grad.float() for t in device], [t.grad.float() for t in exact], rtol=limit, atol=limit)
    return next(text for text in code if "backward" in text.split("def call")[0])


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), w)


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


LAYOUTS = {
    "one row a workgroup": {"lanes": 16, "rows": 1, "width": 4},
    "several": {"lanes": 8, "rows": 2},
    "some without rows": {"lanes": 8, "rows": 3, "width": 1},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("name", LAYOUTS)
def test_gradients_of_norms(name: str, dtype: torch.dtype) -> None:
    for rows, columns in ((64, 256), (60, 33)):
        x, w, b = (torch.randn(*shape).to(dtype) for shape in ((rows, columns), (columns,), (columns,)))
        for f, args in ((rms_norm, (x, w)), (layer_norm, (x, w, b))):
            code = gradients(f, *args, sums_of_parts=4 * columns, **LAYOUTS[name])
            assert code.count("vulkan_kernel(") == 2
            assert "int turn = 0" in code


def test_batches_of_rows() -> None:
    code = gradients(rms_norm, torch.randn(4, 16, 64), torch.randn(64), sums_of_parts=512, lanes=8, rows=2)
    assert "int turn = 0" in code


def test_sums_of_rows_and_columns() -> None:
    from torch._inductor.utils import run_and_get_code

    x = torch.randn(96, 40)
    with heuristics.override(**SMALL, sums_of_parts=160, lanes=8, rows=2):
        got, code = run_and_get_code(compiled(lambda x: (x.sum(1), x.exp().sum(0), x.amax(1))), x.to("vulkan"))
    same(got, (x.sum(1), x.exp().sum(0), x.amax(1)), rtol=1e-5, atol=1e-5)
    assert "\n".join(code).count("vulkan_kernel(") == 2


def test_rows_that_make_no_equal_parts() -> None:
    code = gradients(rms_norm, torch.randn(61, 64), torch.randn(64), sums_of_parts=512, lanes=8, rows=2)
    assert "int turn = 0" not in code


def test_a_sum_that_the_rows_need_comes_first() -> None:
    from torch._inductor.utils import run_and_get_code

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x - x.sum(0)).square().sum(1)

    x = torch.randn(64, 64)
    with heuristics.override(**SMALL, sums_of_parts=512, lanes=8, rows=2):
        got, code = run_and_get_code(compiled(f), x.to("vulkan"))
    same(got, f(x), rtol=1e-5, atol=1e-4)
    assert "int turn = 0" not in "\n".join(code)


def test_parts_fill_a_device() -> None:
    for rows, columns in ((8192, 4096), (65536, 256)):
        parts = heuristics.column_parts(rows, columns)
        assert rows % parts == 0
        assert parts * columns // 16 >= 65536
    assert heuristics.column_parts(512, 512) == 1
    assert heuristics.column_parts(8191, 4096) == 1


def test_few_columns_are_shared_out() -> None:
    for columns in (256, 1024, 8192):
        access = heuristics.RowAccess(4, 4, 1, columns=True, across=4)
        layout = heuristics.reduction(card(), 4096, 4096, columns, access=access)
        assert columns // (layout.rows * layout.across) >= min(64, columns // 8)
        assert layout.workgroup == 512


def test_rows_of_halves_leave_registers_for_more_workgroups() -> None:
    expected = {(2, 256): (32, 8, 128), (2, 1024): (128, 8, 128), (2, 2048): (256, 8, 256), (2, 4096): (256, 16, 256)}
    for (nbytes, columns), numbers in (expected | {(4, 1024): (64, 16, 256)}).items():
        access = heuristics.RowAccess(nbytes, nbytes, 2, width=16, sums=2)
        layout = heuristics.reduction(card(), columns, columns, 32768, access=access)
        assert (layout.lanes, layout.elements, layout.workgroup) == numbers


def test_the_same_each_time() -> None:
    x, w, b = (torch.randn(*shape).half().to("vulkan").requires_grad_() for shape in ((64, 64), (64,), (64,)))
    with heuristics.override(**SMALL, sums_of_parts=512, lanes=8, rows=2):
        f = compiled(layer_norm)
        result = f(x, w, b)
        first = [t.cpu() for t in torch.autograd.grad(result.sum(), (x, w, b), retain_graph=True)]
        for _ in range(100):
            again = torch.autograd.grad(result.sum(), (x, w, b), retain_graph=True)
            assert all(torch.equal(a, t.cpu()) for a, t in zip(first, again, strict=True))
