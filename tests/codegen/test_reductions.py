"""Reductions in every layout a kernel can take, over every kind of reduction, with ties, NaN and infinities."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import FLOATS, SIGNED, check, compiled, dispatches, name_of, on_device, same

from vkinductor.codegen import heuristics

NAN, INF = math.nan, math.inf
LENGTHS = (1, 2, 3, 7, 31, 127, 128, 129, 1000, 4097)

# lanes, rows a workgroup, whether the row stays in registers; and row lengths to run them on.
LAYOUTS = [
    (1, 1, True, (1, 7, 31)),
    (1, 64, True, (2, 3)),
    (8, 1, True, (7, 31)),
    (8, 8, True, (3, 31)),
    (32, 4, True, (31, 129)),
    (128, 1, True, (127, 128, 129, 1000)),
    (128, 2, True, (1, 1000)),
    (1, 1, False, (1, 129)),
    (1, 32, False, (7, 127)),
    (8, 8, False, (3, 128)),
    (32, 2, False, (1000,)),
    (256, 1, False, (1000, 4097)),
]


def everything(x: torch.Tensor) -> dict[str, Any]:
    """One kernel with every kind of reduction over the last dimension, and full-size results of them."""
    return {
        "sum": x.sum(-1),
        "prod": (x * 0.1 + 1).prod(-1),
        "amax": x.amax(-1),
        "amin": x.amin(-1),
        "any": (x > 2).any(-1),
        "all": (x > -2).all(-1),
        "argmax": x.argmax(-1),
        "argmin": x.argmin(-1),
        "var_mean": torch.var_mean(x, -1, correction=0),
        "softmax": x.softmax(-1),
        "log_softmax": x.log_softmax(-1),
        "norm": x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt(),
    }


@pytest.mark.parametrize(("lanes", "rows", "persistent", "lengths"), LAYOUTS)
def test_every_layout(lanes: int, rows: int, persistent: bool, lengths: tuple[int, ...]) -> None:
    for length in lengths:
        torch._dynamo.reset()
        elements = -(-length // lanes) if persistent else 0
        with heuristics.override(lanes=lanes, rows=rows, elements=elements):
            check(everything, torch.randn(13, length), tolerance={"rtol": 2e-5, "atol": 1e-5})


@pytest.mark.parametrize("length", LENGTHS)
def test_every_length_in_the_layout_chosen_for_it(length: int) -> None:
    check(everything, torch.randn(5, length), tolerance={"rtol": 2e-5, "atol": 1e-5})


def test_a_layout_is_really_forced() -> None:
    from torch._inductor.utils import run_and_get_code

    x = torch.randn(4, 64, device="vulkan")
    with heuristics.override(lanes=16, rows=2, elements=0, width=1):
        _, (code,) = run_and_get_code(compiled(lambda x: x.softmax(-1)), x)
    assert "local_size_x = 32" in code
    assert "r0_index += 16" in code


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_special_values(dtype: torch.dtype) -> None:
    """NaN wins every comparison, the first of equals is the arg; infinities keep their sign."""

    def f(x: torch.Tensor) -> dict[str, Any]:
        return {
            "amax": x.amax(-1),
            "amin": x.amin(-1),
            "argmax": x.argmax(-1),
            "argmin": x.argmin(-1),
            "max": tuple(x.max(-1)),
            "min": tuple(x.min(-1)),
            "sum": x.sum(-1),
            "any": x.any(-1),
            "all": x.all(-1),
        }

    rows = [
        [1.0, 3.0, 3.0, -2.0, -2.0, 0.0],
        [NAN, 3.0, 5.0, NAN, 1.0, 2.0],
        [1.0, INF, INF, 0.0, -INF, -INF],
        [-INF] * 6,
        [INF] * 6,
        [INF, NAN, -INF, NAN, 1.0, 1.0],
        [0.0, -0.0, 0.0, -0.0, 0.0, -0.0],
        [2.0] * 6,
        [-0.0] * 6,
    ]
    x = torch.tensor(rows, dtype=torch.float64).repeat(1, 30).to(dtype)
    for lanes, elements in ((1, 0), (32, 6), (64, 0)):
        torch._dynamo.reset()
        with heuristics.override(lanes=lanes, rows=2, elements=elements):
            check(f, x)


# torch itself reduces no others on a CPU.
REDUCED = (*SIGNED, torch.uint8)


@pytest.mark.parametrize("dtype", REDUCED, ids=name_of)
def test_integers(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> dict[str, Any]:
        return {
            "sum": x.sum(-1),
            "sum_narrow": x.sum(-1, dtype=dtype),
            "prod": x.prod(-1),
            "amax": x.amax(-1),
            "amin": x.amin(-1),
            "argmax": x.argmax(-1),
            "argmin": x.argmin(-1),
            "any": x.bool().any(-1),
            "all": x.bool().all(-1),
            "mean": x.float().abs().mean(-1),
        }

    info = torch.iinfo(dtype)
    x = torch.randint(max(info.min, -(1 << 62)), min(info.max, 1 << 62), (7, 45)).to(dtype)
    x[0, 3], x[1, 5], x[2] = info.max, info.min, 0
    check(f, x)


def test_words_of_64_bits_are_exchanged_within_subgroups() -> None:
    from torch._inductor.utils import run_and_get_code

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.sum(-1), x.amax(-1), x.amin(-1), (x != 7).sum(-1)]

    x = torch.randint(-(1 << 62), 1 << 62, (6, 256))
    x[:, 9] = 7
    with heuristics.override(lanes=32, rows=2, elements=8, subgroups=1):
        got, (code,) = run_and_get_code(compiled(f), x.to("vulkan"))
    same(got, f(x))
    assert "subgroupShuffleXor(unpackUint2x32(uint64_t(acc" in code


def test_booleans() -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        logical = [x.any(-1), x.all(-1), x.amax(-1), x.amin(-1)]
        return [*logical, x.sum(-1), x.int().argmax(-1), x.prod(-1), x.float().mean(-1)]

    x = torch.rand(9, 70) > 0.5
    x[0], x[1] = True, False
    check(f, x)


@pytest.mark.parametrize("length", [7, 300, 3000])
def test_softmax_of_masked_rows(length: int) -> None:
    """Rows of -inf alone give NaN as in eager; -inf first in a row leaves the rest alone."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.softmax(-1), x.log_softmax(-1), torch.logsumexp(x, -1)

    x = torch.randn(6, length)
    x[0] = -INF
    x[1, : length // 2] = -INF
    x[2, 1:] = -INF
    x[3, length // 2] = NAN
    x[4] *= 1000
    check(f, x, tolerance={"rtol": 1e-5, "atol": 1e-5})


@pytest.mark.parametrize(("lanes", "length"), [(1, 2100), (64, 3000), (256, 5000)])
def test_online_softmax(lanes: int, length: int) -> None:
    """Long rows on a GPU: maximum and sum in one pass."""
    from torch._inductor.utils import run_and_get_code

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.softmax(-1), (x * 2).log_softmax(-1), x.softmax(0)

    x = torch.randn(6, length) * 3
    x[0] = -INF
    x[1, : length // 2] = -INF
    x[2, 1:] = -INF
    x[3, length // 2] = NAN
    x[4] *= 1000
    with heuristics.override(lanes=lanes, rows=1, elements=0, reads_dominate=True):
        check(f, x, tolerance={"rtol": 1e-5, "atol": 1e-5})
        torch._dynamo.reset()
        _, (code,) = run_and_get_code(compiled(lambda x: x.softmax(-1)), x.to("vulkan"))
    assert code.count("r0_index < rnumel") == 2


DIMS = [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)]


@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_dimensions(dims: tuple[int, ...]) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(dims), x.amax(dims), x.var(dims), x - x.mean(dims, keepdim=True)

    check(f, torch.randn(5, 33, 18), tolerance={"rtol": 1e-5, "atol": 1e-5})


@pytest.mark.parametrize("view", ["transposed", "sliced", "expanded", "offset"])
def test_strided_operands(view: str) -> None:
    base = torch.randn(40, 60)
    x = {
        "transposed": base.t(),
        "sliced": base[3:, ::3],
        "expanded": base[:1].expand(7, 60),
        "offset": base.view(-1)[7:607].view(20, 30),
    }[view]

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(-1), x.sum(0), x.argmax(-1), x.softmax(-1)

    check(f, x)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_long_rows_are_split(rows: int) -> None:
    """More work than one workgroup should do: two kernels, partial results between them."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(-1), x.amax(-1), (x > 3.9).any(-1), torch.var_mean(x, -1)

    x = torch.randn(rows, 70_001) * 0.5 + 3
    check(f, x, tolerance={"rtol": 1e-5, "atol": 1e-5})


def test_splitting_is_used_when_units_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU reports many units: long reductions are cut into a first and a second stage there."""
    from vkinductor.codegen import interface

    monkeypatch.setitem(interface._UNITS, "cpu", 64)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(), x.amax(), x.argmax(), x.var(), (x * 2).prod(), x.sum(0), x.softmax(-1)

    x = torch.randn(3, 50_001) * 0.1 + 0.5
    x[1, 777] = 2.0
    check(f, x, tolerance={"rtol": 2e-5, "atol": 1e-5})
    assert dispatches(compiled(lambda x: x.sum()), x.to("vulkan")) == 2


def test_two_reductions_share_a_loaded_value() -> None:
    """A value loaded in the first loop is used after it, by a second reduction whose row is too long for registers."""

    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x * 2 + y
        centred = z - z.mean(-1, keepdim=True)
        scaled = centred / centred.abs().amax(-1, keepdim=True)
        return scaled, scaled.sum(-1), (z * scaled).sum(-1)

    for length in (1025, 5000):
        torch._dynamo.reset()
        check(f, torch.randn(3, length), torch.randn(3, length), tolerance={"rtol": 1e-4, "atol": 1e-4})


def test_fused_before_and_after() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = (x * w).sin() + b
        total = z.sum(-1, keepdim=True)
        return torch.tanh(z / total.abs().clamp(min=0.1)) * w, total.squeeze(-1) + 1, z

    args = on_device([torch.randn(9, 130), torch.randn(130), torch.randn(9, 1)])
    check(f, *[a.cpu() for a in args])
    assert dispatches(compiled(f), *args) == 1


def test_a_padded_row_value_serves_loop_and_row() -> None:
    """A masked load that depends on the row alone is read inside the loop and again once a row."""

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        padded = F.pad(w, (1, 2))
        total = (x * padded[:, None]).sum(-1)
        return total, total + padded, x + padded[:, None]

    check(f, torch.randn(9, 50), torch.randn(6))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
def test_half_sums_do_not_overflow(dtype: torch.dtype) -> None:
    """The sum of squares of 4096 times 300 is 3.7e8: over float16's range unless it is accumulated in float32."""

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.rms_norm(x, (4096,), w), x.float().square().mean(-1), x.mean(-1), x.var(-1, correction=0) + 1

    x = torch.full((3, 4096), 300.0, dtype=dtype)
    w = torch.ones(4096, dtype=dtype)
    got = compiled(f)(*on_device([x, w]))
    ones = torch.ones(3, 4096, dtype=dtype)
    row = torch.ones(3)
    same(got, (ones, row * 90_000.0, (row * 300).to(dtype), row.to(dtype)))


def test_no_rows_and_empty_rows() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(-1), y.sum(-1), y.prod(-1), y.any(-1), y.all(-1), x.softmax(-1)

    check(f, torch.empty(0, 5), torch.empty(3, 0))


def test_norms_and_statistics() -> None:
    def f(x: torch.Tensor) -> dict[str, Any]:
        return {
            "norm": x.norm(dim=-1),
            "norm1": x.norm(p=1, dim=-1),
            "inf": torch.linalg.vector_norm(x, INF, -1),
            "std": x.std(-1),
            "count": torch.count_nonzero(x > 0, dim=-1),
            "logsumexp": x.logsumexp(-1),
            "normalize": F.normalize(x, dim=-1),
            "nansum": x.nansum(-1),
            "aminmax": tuple(torch.aminmax(x, dim=-1)),
            "cosine": F.cosine_similarity(x, x.flip(0), -1),
        }

    check(f, torch.randn(11, 77), tolerance={"rtol": 1e-5, "atol": 1e-5})


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [1, 3])
def test_no_degrees_of_freedom(columns: int, dtype: torch.dtype) -> None:
    """What torch divides by a correction that leaves nothing is NaN for one element, else infinite."""

    def f(x: torch.Tensor) -> tuple[Any, ...]:
        moments = [g(x, dim=1, correction=c) for g in (torch.var_mean, torch.std_mean) for c in (columns, columns + 2)]
        return *moments, x.var(1, correction=columns), x.std(1, correction=columns), x.var(correction=99)

    x = torch.arange(4.0 * columns).square().reshape(4, columns).to(dtype)
    check(f, x)
    same(f(x.to("vulkan")), f(x))


def test_division_by_a_zero_known_when_compiling() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        zero = x.new_zeros(())
        return x / zero, x / -zero, (x - x) / zero, x // zero, torch.div(x, zero, rounding_mode="trunc"), x / 0

    check(f, torch.tensor([0.0, 1.0, -2.0, INF, -INF, float("nan")]))


def test_layer_and_group_norm() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.layer_norm(x, (6, 7, 8)), F.group_norm(x, 3, w, b), F.instance_norm(x)

    check(f, torch.randn(4, 6, 7, 8), torch.randn(6), torch.randn(6), tolerance={"rtol": 1e-5, "atol": 1e-5})


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("computed", [False, True])
def test_positions_in_a_whole_tensor_are_logical(computed: bool, keepdim: bool) -> None:
    """Whatever order the memory has: transposed, with gaps, or computed in the same kernel from such a tensor."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin() if computed else x
        return torch.argmax(y, keepdim=keepdim), torch.argmin(y, None, keepdim), y[..., 0].argmax()

    generator = torch.Generator().manual_seed(0)
    for x in (
        torch.randn(5, 6, 7, generator=generator),
        torch.randn(5, 6, 7, generator=generator).permute(2, 1, 0),
        torch.randn(5, 6, 14, generator=generator)[..., ::2].transpose(0, 1),
        torch.zeros(3, 4).t(),  # the first of equals
    ):
        torch._dynamo.reset()
        (moved,) = on_device([x])
        got, expected = compiled(f)(moved), f(x)
        for a, b in zip(got, expected, strict=True):
            assert a.shape == b.shape
            assert torch.equal(a.cpu(), b)
        assert torch.equal(moved.argmax().cpu(), x.argmax())  # eager
