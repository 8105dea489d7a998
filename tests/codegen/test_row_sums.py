"""Sums of what rows come to in the kernel that reduces the rows: that they are there, and right.

Layouts of a GPU are forced: a CPU driver has none of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cards import card, launched
from compiled import compiled, name_of, on_device, same

from vkinductor.codegen import heuristics

TOGETHER = "neighbouring rows come to"


def code_of(f: Callable[..., Any], *args: torch.Tensor, single_row: int = 16, **layout: int) -> str:
    """The code of ``f``, made as for a GPU that sums so many values at once, whose result is compared with doubles."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    with heuristics.override(reads_dominate=True, single_row=single_row, **layout), torch.no_grad():
        got, code = run_and_get_code(compiled(f), *on_device(args))
    exact = f(*[t.double() if t.is_floating_point() else t for t in args])
    same(
        torch.utils._pytree.tree_map(lambda t: t.double(), got),
        torch.utils._pytree.tree_map(lambda t: t.double(), exact),
        rtol=1e-5,
        atol=1e-5,
    )
    return "\n".join(code)


def wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def log_softmax_nll(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.nll_loss(F.log_softmax(wide(x), -1), target)


def weighted(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(wide(x), target, weight, ignore_index=2, reduction="sum")


def smoothed(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(wide(x), target, weight, label_smoothing=0.1)


LAYOUTS: dict[str, dict[str, int]] = {
    "of the card": {},
    "many lanes": {"lanes": 32, "rows": 8},
    "fewer rows than are summed": {"lanes": 8, "rows": 3, "width": 1},
    "loops": {"lanes": 8, "rows": 8, "elements": 0},
    "columns": {"columns": 1, "lanes": 4, "rows": 8},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("name", LAYOUTS)
def test_losses(name: str, dtype: torch.dtype) -> None:
    for rows, columns in ((64, 128), (72, 33)):
        x, weight, target = torch.randn(rows, columns).to(dtype), torch.rand(columns), torch.randint(columns, (rows,))
        some = target.clone()
        some[::3] = -100
        for f, args in ((log_softmax_nll, (x, some)), (weighted, (x, target, weight)), (smoothed, (x, some, weight))):
            code = code_of(f, *args, **LAYOUTS[name])
            assert code.count("vulkan_kernel(") == 2
            assert code.count(TOGETHER) == 1


def test_batches_of_rows() -> None:
    x, target = torch.randn(4, 16, 64), torch.randint(64, (4, 16))
    code = code_of(lambda x, t: F.cross_entropy(x.flatten(0, 1), t.flatten()), x, target)
    assert code.count("vulkan_kernel(") == 2
    assert TOGETHER in code


def test_workgroups_that_are_not_full() -> None:
    assert "What 2 " + TOGETHER in code_of(log_softmax_nll, torch.randn(18, 64), torch.randint(64, (18,)), rows=8)


def test_no_rows_together() -> None:
    """Odd numbers of them, no more than one workgroup sums at once, rows that are long, values of other rows."""
    x, target = torch.randn(33, 64), torch.randint(64, (33,))
    assert TOGETHER not in code_of(log_softmax_nll, x, target)
    assert TOGETHER not in code_of(log_softmax_nll, x[:32], target[:32], single_row=32)
    assert TOGETHER not in code_of(log_softmax_nll, torch.randn(64, 4096), torch.randint(4096, (64,)))
    assert TOGETHER not in code_of(lambda x: (x.amax(-1) - x.amax(-1).flip(0)).square().sum(), torch.randn(64, 64))


def test_losses_that_are_results_as_well() -> None:
    def f(x: torch.Tensor, target: torch.Tensor) -> Any:
        each = F.cross_entropy(wide(x), target, reduction="none")
        return each, each.mean(), each.square().sum()

    code = code_of(f, torch.randn(64, 40), torch.randint(40, (64,)))
    assert code.count("vulkan_kernel(") == 3  # sums of nothing in common are two kernels in the end
    assert code.count(TOGETHER) == 1


def test_reductions_over_columns() -> None:
    code_of(lambda x: x.amax(0).square().sum(), torch.randn(48, 64))
    code_of(lambda x: (x.square().sum(0).sqrt().sum(), x.amax(1).sum()), torch.randn(64, 64))


def test_gradients() -> None:
    from torch._inductor.utils import run_fw_bw_and_get_code

    x, target = torch.randn(64, 96), torch.randint(96, (64,))
    target[5] = -100
    mine = x.to("vulkan").requires_grad_()
    with heuristics.override(reads_dominate=True, single_row=16):
        _, code = run_fw_bw_and_get_code(lambda: compiled(log_softmax_nll)(mine, target.to("vulkan")))
    exact = x.double().requires_grad_()
    log_softmax_nll(exact, target).backward()
    assert exact.grad is not None
    same(mine.grad, exact.grad.float(), rtol=1e-5, atol=1e-6)
    assert TOGETHER in code[0]


def test_the_same_each_time() -> None:
    x, target = torch.randn(64, 96).half().to("vulkan"), torch.randint(96, (64,)).to("vulkan")
    with heuristics.override(reads_dominate=True, single_row=16), torch.no_grad():
        f = compiled(log_softmax_nll)
        first = f(x, target).cpu()
        assert all(torch.equal(first, f(x, target).cpu()) for _ in range(100))


def test_how_many_rows() -> None:
    expected = {(32768, 1024): 4, (16384, 2048): 2, (65536, 256): 8, (32768, 4096): 1, (8192, 64): 1, (16386, 8): 2}
    with heuristics.override(reads_dominate=True):
        assert {problem: heuristics.rows_together(*problem) for problem in expected} == expected


@pytest.mark.parametrize(("rows", "columns", "workgroup"), [(32768, 1024, 128), (16384, 2048, 128), (65536, 256, 256)])
def test_losses_on_a_card(monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, workgroup: int) -> None:
    x, target = torch.zeros(rows, columns, device="vulkan"), torch.zeros(rows, dtype=torch.int64, device="vulkan")
    kernels = launched(monkeypatch, card())
    with torch.no_grad():
        compiled(log_softmax_nll)(x, target)
    reduced, summed = kernels
    # Nothing of a row is stored, and no workgroup is larger than one of such rows needs to be.
    assert reduced.glsl.count("const uint64_t part =") == 1
    assert "d[x0] =" not in reduced.glsl
    assert f"layout(local_size_x = {workgroup})" in reduced.glsl
    assert rows // reduced.per_group == 8192
    # Targets are on their way while rows are reduced; one invocation a row computes what comes then.
    assert "in_ptr1.d[x0]" in reduced.glsl.partition("barrier();")[0]
    assert "vk_log(" in reduced.glsl.partition("if (local < " + str(reduced.per_group))[2]
    # The two sums read before they wait for each other.
    before, _, _ = summed.glsl.partition("barrier();")
    assert before.count("Buffer_uvec4(uint64_t(in_ptr") == 3
