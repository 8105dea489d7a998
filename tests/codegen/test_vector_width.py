"""Wide loads and stores, tiles of transposes, folds within subgroups: that they are there, and change nothing else.

Layouts of a GPU are forced: a CPU driver gets one element an invocation.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import DTYPES, UNSIGNED, compiled, copies, name_of, on_device, same

from vkinductor.codegen import heuristics, vectorize

WIDE = re.compile(r"Buffer_(uint|uvec2|uvec4)\(uint64_t")


def run(f: Callable[..., Any], *args: Any, tolerance: dict[str, float] | None = None, **layout: Any) -> str:
    """``f`` with a forced layout, compared with the CPU; the generated code."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    with heuristics.override(**layout):
        result, code = run_and_get_code(compiled(f), *on_device(args))
    same(result, f(*copies(args)), **(tolerance or {}))
    return "\n".join(code)


def wide(code: str) -> list[str]:
    """The types of the wide accesses in ``code``."""
    return WIDE.findall(code)


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return (torch.randn(shape) > 0) if dtype == torch.bool else torch.randint(0, 100, shape).to(dtype)


def combined(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x ^ y if x.dtype == torch.bool else torch.where(x > y, x, y)


# --- elementwise ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in UNSIGNED[1:]], ids=name_of)
def test_sixteen_bytes_of_every_dtype(dtype: torch.dtype) -> None:
    width = 16 // dtype.itemsize
    code = run(combined, numbers(dtype, 40, 64), numbers(dtype, 40, 64), width=width)
    assert wide(code) == ["uvec4"] * 3
    assert not re.search(r"ptr\d\.d\[", code)


def test_nan_infinity_and_subnormals_pass() -> None:
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 6e-8, 65519.0, 65520.0, 1e-40])
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        run(lambda x: (x.clone(), x.float(), x.half()), special.repeat(8).to(dtype), width=8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.bool], ids=name_of)
def test_copies_keep_their_words(dtype: torch.dtype) -> None:
    """Every bit of them, and without converting there and back."""
    bits = torch.arange(-32768, 32768).to(torch.int16)
    x = bits > 0 if dtype == torch.bool else bits.to(torch.int8) if dtype == torch.int8 else bits.view(dtype)
    x = x.reshape(32, 32, 64)
    functions = (lambda x: x.clone(), lambda x: x.permute(1, 2, 0).contiguous())
    layouts = {"width": 16 // dtype.itemsize}, {"tile": (32, 32)}
    for f, layout in [*zip(functions, layouts, strict=True)][: dtype.itemsize]:  # bytes have no words in a tile
        code = run(lambda x, f=f: (f(x), ~f(x) if dtype in (torch.int8, torch.bool) else -f(x)), x, **layout)
        body = code[code.index("void main") :]
        assert len(re.findall(r"float kept\d|int kept\d|bool kept\d", body)) == 1
        raw = torch.int16 if dtype.itemsize == 2 else dtype
        with heuristics.override(**layout):
            assert torch.equal(compiled(f)(x.to("vulkan")).cpu().view(raw), f(x).view(raw))


def test_halves_are_rounded_to_nearest_even() -> None:
    halves = torch.arange(0, 0x7C00, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    middle = (halves[:-1] + halves[1:]) / 2
    x = torch.cat([middle, torch.nextafter(middle, halves[1:]), torch.nextafter(middle, halves[:-1])])
    x = torch.cat([x, -x])[: len(x) // 8 * 8]
    assert len(wide(run(lambda x: x.half(), x, tolerance={"rtol": 0, "atol": 0}, width=8))) == 3


@pytest.mark.parametrize("width", [4, 8])
def test_bfloat16_is_rounded_to_nearest_even(width: int) -> None:
    """All upper halves of floats, lower halves around the middle, NaN and infinity among others."""
    bits = torch.arange(-32768, 32768)[:, None] << 16 | torch.tensor([1, 0x7FFF, 0x8000, 0x8001])
    x = bits.flatten()[torch.randperm(bits.numel())].to(torch.int32).view(torch.float32)
    with heuristics.override(width=width):
        got = compiled(lambda x: x.bfloat16())(x.to("vulkan")).cpu()
    want, number = x.bfloat16(), ~x.isnan()
    assert got[~number].isnan().all()
    assert torch.equal(got[number].view(torch.int16), want[number].view(torch.int16))


def test_sizes_that_are_no_multiple() -> None:
    for n, width in ((1023, 0), (1022, 2), (1020, 4)):
        code = run(lambda x: x.relu() + 1, torch.randn(n), width=4)
        assert wide(code) == (["uvec4", "uvec4"] if width == 4 else ["uvec2", "uvec2"] if width == 2 else [])
    code = run(lambda x: x.relu() + 1, torch.randn(1023), width=4, tails=1)
    assert len(wide(code)) == 2
    assert "- xfirst < 4" in code


def test_mixed_dtypes_take_two_loads_of_the_widest() -> None:
    code = run(lambda x, y, m: torch.where(m, x.float() + y, y), torch.randn(8, 64).half(), torch.randn(8, 64),
               torch.randn(8, 64) > 0, width=8)  # fmt: skip
    assert sorted(wide(code)) == ["uvec2"] + ["uvec4"] * 5


def test_broadcast_operands() -> None:
    def f(x: torch.Tensor, row: torch.Tensor, column: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * row + column) * one

    code = run(f, torch.randn(24, 64), torch.randn(64), torch.randn(24, 1), torch.randn(()), width=4)
    assert len(wide(code)) == 3
    # What is the same for all neighbours is loaded before the loop over them.
    before = code[code.index("void main") : code.index("int v = 0")]
    assert len(re.findall(r"ptr\d\.d\[", before)) == 2
    assert not re.search(r"ptr\d\.d\[", code[code.index("int v = 0") :])


def test_what_a_row_has_once_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The width is that of what neighbours have each: in the gradient of a loss by class the targets are int64."""
    monkeypatch.setattr(heuristics, "FEWEST_INVOCATIONS_CPU", 1)

    def f(x: torch.Tensor, target: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(64, device=x.device) == target, 0, x * scale)

    given = torch.randn(48, 64).half(), torch.randint(64, (48, 1)), torch.randn((), dtype=torch.float16)
    assert wide(run(f, *given)) == ["uvec4", "uvec4"]
    # What varies with the element does.
    code = run(lambda x, y: (x * y).to(x.dtype), torch.randn(48, 64).half(), torch.randint(9, (48, 64)))
    assert sorted(wide(code)) == ["uvec2"] * 2 + ["uvec4"] * 2


def test_rows_that_begin_anywhere_are_read_one_by_one() -> None:
    code = run(lambda x, y: x[:, 1:] + y, torch.randn(8, 65), torch.randn(8, 64), width=4)
    assert len(wide(code)) == 2
    assert len(re.findall(r"ptr\d\.d\[", code)) == 1


def test_views_that_begin_anywhere() -> None:
    x = torch.randn(4 * 64 + 16)
    for offset in (0, 1, 2, 4, 7):
        run(lambda x: x * 2 + 1, x[offset : offset + 256], width=4)
    # A program for aligned inputs is called with others.
    with heuristics.override(width=4):
        f = compiled(lambda x: x * 2 + 1)
        for offset in (0, 1, 4, 3):
            (given,) = on_device([x[offset : offset + 256]])
            same(f(given), x[offset : offset + 256] * 2 + 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8, torch.int64], ids=name_of)
def test_every_second_element(dtype: torch.dtype) -> None:
    code = run(lambda x, y: combined(x[:, ::2], y), numbers(dtype, 16, 128), numbers(dtype, 16, 64), width=4)
    scalars = len(re.findall(r"ptr\d\.d\[", code))
    assert scalars == (1 if dtype == torch.int64 else 0)


@pytest.mark.parametrize(
    ("dtype", "taken"),
    [(torch.float16, {2: [], 4: ["uvec2"] * 4, 8: ["uvec4"] * 4}), (torch.int8, {4: ["uint"] * 4, 8: ["uvec2"] * 4})],
    ids=str,
)
def test_every_third_element(dtype: torch.dtype, taken: dict[int, list[str]]) -> None:
    # Three loads of one power of two words, and a store; none of a word without an element, which may not be there.
    x = numbers(dtype, 64, 3).T
    for width, types in taken.items():
        assert wide(run(lambda x: x[0] + x[1], x, width=width)) == types


def test_parts_behind_masks_stay_scalar() -> None:
    code = run(lambda x, y: (F.pad(x, (3, 5)), torch.cat([x, y], -1)), torch.randn(4, 24), torch.randn(4, 40), width=4)
    assert "uvec4" in code


def test_rows_by_index() -> None:
    code = run(lambda w, i: w[i] + 1, torch.randn(50, 64), torch.randint(-50, 50, (9,)), width=4)
    assert len(wide(code)) == 2
    before = code[code.index("void main") : code.index("int v = 0")]
    assert "clamp" in before or "max(min(" in before


def test_searches_and_random_numbers() -> None:
    values, edges = torch.randn(64), torch.randn(9).sort().values
    run(lambda x, e: (torch.bucketize(x, e), x + 1), values, edges, width=4)
    results = []
    for width in (1, 4):
        torch._dynamo.reset()
        torch.manual_seed(3)
        with heuristics.override(width=width):
            results.append(compiled(lambda x: F.dropout(x, 0.5) + torch.rand_like(x))(values.to("vulkan")).cpu())
    assert torch.equal(*results)


def test_in_place_and_atomics() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(y)
        return torch.zeros(16).to(x.device).index_add(0, i, y[:32])

    x, y, i = torch.randn(64), torch.randint(9, (64,)).float(), torch.randint(16, (32,))
    got, want = on_device([x, y, i]), copies([x, y, i])
    with heuristics.override(width=4):
        same(compiled(f)(*got), f(*want))
    same(got[0], want[0])


def test_sizes_that_vary() -> None:
    from torch._inductor.utils import run_and_get_code

    with heuristics.override(width=4, tails=1):
        f = compiled(lambda x, b: torch.relu(x + b), dynamic=True)
        b = torch.randn(64)
        torch._dynamo.mark_static(b)
        for rows in (5, 7, 12):
            x = torch.randn(rows, 64)
            torch._dynamo.mark_static(x, 1)
            same(f(x.to("vulkan"), b.to("vulkan")), torch.relu(x + b))
        g = compiled(lambda x: x * 2 + 1, dynamic=True)
        for n in (64, 65, 3, 130):
            same(g(torch.arange(n).float().to("vulkan")), torch.arange(n).float() * 2 + 1)
        torch._dynamo.reset()
        _, (code,) = run_and_get_code(compiled(lambda x: x * 2 + 1, dynamic=True), torch.randn(65).to("vulkan"))
    assert len(wide(code)) == 2


# --- rows ----------------------------------------------------------------------------------------


def norms(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total = x + y
    shape = (x.shape[-1],)
    return F.rms_norm(total, shape, w), total, F.layer_norm(x, shape, w), F.softmax(y, -1), x.argmax(-1), y.amax(-1)


LAYOUTS = {
    "persistent": {"lanes": 16, "rows": 2, "elements": 16},
    "looped": {"lanes": 8, "rows": 2, "elements": 0},
    "subgroups": {"lanes": 64, "rows": 1, "elements": 8, "subgroups": 1},
    "within a subgroup": {"lanes": 8, "rows": 4, "elements": 32, "subgroups": 1},
    "several steps a pass": {"lanes": 8, "rows": 2, "elements": 0, "batch": 4, "width": 1},
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name_of)
@pytest.mark.parametrize("name", LAYOUTS)
def test_norms(name: str, dtype: torch.dtype) -> None:
    layout = {"width": 16 // dtype.itemsize, **LAYOUTS[name]}
    x, y, w = numbers(dtype, 6, 256), numbers(dtype, 6, 256), numbers(dtype, 256)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype != torch.float32 else None
    code = run(norms, x, y, w, tolerance=tolerance, **layout)
    assert ("Buffer_uvec4" in code) == (layout["width"] > 1)
    assert ("subgroupShuffleXor" in code) == ("subgroups" in layout)


@pytest.mark.parametrize("columns", [250, 3])
def test_rows_of_any_length(columns: int) -> None:
    x, y, w = (torch.randn(*s) for s in ((5, columns), (5, columns), (columns,)))
    code = run(norms, x, y, w, width=4, lanes=8, rows=2, elements=32)
    assert ("uvec2" in code) == (columns % 2 == 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name_of)
@pytest.mark.parametrize("columns", [256, 246])
def test_loads_of_a_row_come_before_its_stores(columns: int, dtype: torch.dtype) -> None:
    def residual(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + y
        return F.rms_norm(total, (columns,), w), total

    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype != torch.float32 else None
    args = numbers(dtype, 5, columns), numbers(dtype, 5, columns), numbers(dtype, columns)
    layout = {"width": 16 // dtype.itemsize, "lanes": 4, "rows": 2, "elements": 64, "early": 96}
    code = run(residual, *args, tolerance=tolerance, **layout)
    assert set(re.findall(r"early_wide\d+", code)) == {"early_wide0", "early_wide1"}  # not the weight


def test_which_loads_come_early() -> None:
    """Those of addresses that are known, as many steps as have the bytes, alike."""
    from vkinductor.codegen.early_loads import find

    index, row = "const int r0_1 = r0_index;", "float tmp1 = 2.0;"
    rows = {"x0"}
    late = "const uint wide1_0 = d[int(tmp1) + r0_1 + x0].d[0];"
    weight = "const uint wide2_0 = d[r0_1].d[0];"
    load = "const uvec4 wide0_0 = Buffer_uvec4(uint64_t(a) + uint64_t(r0_1 + 64*x0) * 4ul).d[0];"
    body = vectorize.Wide(4, [index], [index, load, weight, row, late], [], ["store"])
    found = find(body, 7, 64, rows)
    assert found is not None
    assert (found.steps, [name for _, name, _ in found.loads]) == (4, ["wide0_0"])
    assert found.before == [index, "const uvec4 wide0_0 = early_wide0_0[step - first];", weight, row, late]
    assert find(body, 7, 31, rows) is find(body, 1, 64, rows) is None
    assert find(vectorize.Wide(4, [index], [index, load]), 7, 64, rows) is None


def test_registers_that_do_not_hold_a_row_are_not_taken() -> None:
    x = numbers(torch.float32, 40, 13)
    run(lambda x: x.sum(), x, lanes=8, rows=8, elements=32, tolerance={"atol": 1e-4, "rtol": 0.0})


def test_variance_in_registers_needs_no_division_an_element() -> None:
    x = torch.randn(4, 64) + 1000
    code = run(lambda x: torch.var_mean(x, -1), x, lanes=8, rows=2, elements=8, width=4)
    assert "delta" not in code


def test_sums_of_many_steps_are_exact_enough() -> None:
    x = torch.rand(2, 1 << 16)
    for layout in ({"width": 4}, {"width": 1, "batch": 8}):
        torch._dynamo.reset()
        with heuristics.override(lanes=4, rows=1, elements=0, **layout):
            got = compiled(lambda x: x.sum(-1))(x.to("vulkan")).cpu()
        torch.testing.assert_close(got.double(), x.double().sum(-1), rtol=1e-7, atol=0)


@pytest.mark.parametrize("elements", [0, 8])
def test_reductions_over_columns(elements: int) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(0), x.amax(0), x.argmin(0), x.double().var(0)

    code = run(f, torch.randn(30, 70), columns=1, lanes=4, rows=8, elements=elements, batch=2)
    assert "lane = local / 8" in code


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=name_of)
def test_several_columns_an_invocation(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = x.float() * y * scale
        return product.sum(0).relu().to(x.dtype) + 1, product.amax(0), y.argmax(0)

    x, y, scale = numbers(dtype, 30, 68), numbers(dtype, 30, 68), torch.randn(30, 1)
    for layout in ({"batch": 4}, {"batch": 1, "lanes": 1}):
        code = run(f, x, y, scale, **{"columns": 1, "across": 4, "lanes": 4, "rows": 8, **layout})
        assert len(wide(code)) >= 2
        assert "* 4;" in code


def test_columns_are_told_from_rows() -> None:
    from vkinductor.codegen.heuristics import RowAccess, reduction
    from vkinductor.runtime.deviceinfo import DeviceInfo, Limits

    limits = Limits(max_workgroup_invocations=1024, max_workgroup_size=(1024, 1024, 64))
    gpu = DeviceInfo(0, "a GPU", "discrete", limits=limits)
    halves = RowAccess(2, 2, 1, width=16)
    for rows, row in ((64, 32768), (8192, 4096), (65536, 256)):
        layout = reduction(gpu, row, row, rows, access=halves)
        assert layout.lanes * layout.elements >= row
        assert layout.width == 8
    layout = reduction(gpu, 8192, 8192, 4096, access=RowAccess(2, 2, 1, columns=True))
    assert layout.columns
    assert layout.rows == 64


def test_a_row_that_fits_is_not_cut_in_two() -> None:
    from torch._inductor.utils import run_and_get_code

    x = torch.randn(2, 16384)
    with heuristics.override(reads_dominate=True, lanes=512, elements=32):
        got, (code,) = run_and_get_code(compiled(lambda x: x.sum(-1)), x.to("vulkan"))
    same(got, x.sum(-1), rtol=1e-5, atol=1e-3)
    assert code.count("vulkan_kernel(") == 1


def test_the_only_row_is_cut_where_it_is_long() -> None:
    """The losses of many rows: each is gathered, and one workgroup would wait for one after the other."""
    from torch._inductor.utils import run_and_get_code

    x, target = torch.randn(16384, 8), torch.randint(8, (16384,))
    for single, kernels in ((16384, 2), (8192, 3)):
        torch._dynamo.reset()
        f = compiled(lambda x, t: F.cross_entropy(x, t))
        with heuristics.override(reads_dominate=True, single_row=single, rows_together=1, lanes=512, elements=32):
            got, (code,) = run_and_get_code(f, x.to("vulkan"), target.to("vulkan"))
        same(got, F.cross_entropy(x, target), rtol=1e-5, atol=1e-5)
        assert code.count("vulkan_kernel(") == kernels


def test_the_same_each_time() -> None:
    x = torch.randn(8, 1024).half().to("vulkan")
    with heuristics.override(width=8, lanes=64, rows=1, elements=16, subgroups=1):
        f = compiled(lambda x: (F.softmax(x, -1), F.layer_norm(x, (1024,)), x.float().sum(-1)))
        first = [t.cpu() for t in f(x)]
        for _ in range(100):
            assert all(torch.equal(a, b.cpu()) for a, b in zip(first, f(x), strict=True))


# --- tiles ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.int64], ids=name_of)
@pytest.mark.parametrize("tile", [(16, 16), (32, 64), (32, 16)], ids=str)
def test_transposes(tile: tuple[int, int], dtype: torch.dtype) -> None:
    cases: list[tuple[Callable[..., Any], tuple[Any, ...], int]] = [
        (lambda x, y: combined(x.T, y), (numbers(dtype, 64, 96), numbers(dtype, 96, 64)), 1),
        (lambda x, y: combined(x.T, y), (numbers(dtype, 65, 33), numbers(dtype, 33, 65)), 1),
        (lambda x: x.permute(1, 2, 0).contiguous(), (numbers(dtype, 24, 16, 128),), 1),
        (lambda x: x.permute(0, 2, 3, 1).contiguous(), (numbers(dtype, 3, 40, 16, 16),), 1),
        (lambda x: x.permute(0, 3, 1, 2).contiguous(), (numbers(dtype, 3, 16, 17, 40),), 1),
        (lambda x: x.flip(0).T.contiguous(), (numbers(dtype, 40, 40),), 0),
    ]
    for f, args, expected in cases:
        code = run(f, *args, tile=tile)
        assert code.count("shared ") >= expected


def test_short_sides_have_no_tile() -> None:
    assert "shared " not in run(lambda x: x.T.contiguous(), torch.randn(64, 4), tile=(32, 32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int16], ids=name_of)
def test_halves_go_through_shared_memory_in_pairs(dtype: torch.dtype) -> None:
    """As they lie in memory, so that a copy converts nothing before it stores; rows of odd length have no pairs."""
    x, y, z = (torch.randint(0, 20, shape).to(dtype) for shape in ((64, 128), (64, 128), (128, 64)))
    code = run(lambda x, y, z: z + x.T + y.T, x, y, z, tile=(32, 32))
    assert code.count("shared uint ") == code.count("uint pair[") == 2
    assert "shared uint " not in run(lambda x: x.T.contiguous(), numbers(dtype, 65, 128), tile=(32, 32))


# --- text ----------------------------------------------------------------------------------------


def test_statements_are_blocks_with_what_they_declare() -> None:
    lines = ["float tmp0;", "if (c) {", "    tmp0 = 1.0;", "} else { tmp0 = 2.0; }", "float tmp1 = tmp0;"]
    assert [len(s) for s in vectorize.statements(lines)] == [4, 1]


def test_a_gradient() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        return torch.stack([g.sum() for g in torch.autograd.grad(F.layer_norm(x, (64,), w).square().sum(), (x, w))])

    x, w = torch.randn(32, 64), torch.randn(64)
    with heuristics.override(width=4, lanes=8, rows=2, elements=8, subgroups=1):
        a, b = (t.to("vulkan").requires_grad_() for t in (x, w))
        compiled(lambda x, w: F.layer_norm(x, (64,), w).square().sum())(a, b).backward()
    c, d = (t.clone().requires_grad_() for t in (x, w))
    F.layer_norm(c, (64,), d).square().sum().backward()
    same([a.grad, b.grad], [c.grad, d.grad], rtol=1e-4, atol=1e-4)
