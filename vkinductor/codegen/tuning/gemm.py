"""Matrix products as a family: codegen/gemm's candidates, a problem as torch.mm or torch.bmm, its reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import Any

import torch

from vkinductor.runtime import context
from vkinductor.runtime.deviceinfo import DeviceInfo

from ..alignment import WIDEST
from ..gemm import choose, waiting
from ..gemm.cooperative import WorkgroupTile
from ..gemm.problem import Problem
from ..gemm.tiles import BlockTile, Tile, TiledTile
from . import compare
from .family import Bucket, Operand, Operation, Size, vector_width

# Rows of the result that are compared with a product in double precision.
_ROWS = 16
# (relative, share of the root mean square): what rounding the result, and adding up in another order, may change.
_TOLERANCE = {
    torch.float16: (2e-3, 1e-3),
    torch.bfloat16: (1.6e-2, 2e-3),
    torch.float32: (1e-5, 1e-4),
    torch.float64: (1e-12, 1e-12),
}
# float32 where torch.set_float32_matmul_precision allows less.
_REDUCED = (1e-3, 1e-2)


class Gemm:
    """The family of matrix products; problems are `gemm.problem.Problem`."""

    name = "gemm"
    sources: tuple[str, ...] = ("codegen/gemm", "codegen/alignment.py", "codegen/template_kernel.py", "templates")

    def bucket(self, problem: Problem) -> Bucket:
        names = ("batch", "m", "n", "k")
        sizes = tuple(Size(name, getattr(problem, name), problem.static) for name in names)
        waits = " waits" if as_it_waits(problem) else ""
        return Bucket(f"{_kind(problem)} {layout(problem)} {problem.a_width}x{problem.b_width}{waits}", sizes)

    def candidates(self, info: DeviceInfo, problem: Problem) -> Sequence[Tile]:
        return choose.candidates(info, problem)

    def label(self, candidate: Tile) -> str:
        kind = type(candidate).__name__.removesuffix("Tile").lower()
        values = {f.name: getattr(candidate, f.name) for f in dataclasses.fields(candidate) if f.compare}
        defaults = {f.name: f.default for f in dataclasses.fields(candidate)}
        return " ".join([kind, *(f"{name}={value}" for name, value in values.items() if value != defaults[name])])

    def estimate(self, info: DeviceInfo, problem: Problem, candidate: Tile) -> float:
        """Nanoseconds by codegen/gemm's model; of a kernel without blocks, whose candidates differ in what no simple
        model knows, the time to read the operands."""
        if isinstance(candidate, (BlockTile, TiledTile)):
            return choose.estimate(info, problem, candidate)
        return problem.batch * (problem.m + problem.n) * problem.k * problem.dtype.itemsize / choose._BYTES_A_NS

    def forced(self, candidate: Tile) -> AbstractContextManager[Any]:
        return choose.forced(candidate)

    def operation(self, problem: Problem) -> Operation:
        a, b = operands(problem)
        batch, m, n, k = problem.batch, problem.m, problem.n, problem.k
        tolerance = _TOLERANCE.get(problem.dtype, (0.0, 0.0))
        if _kind(problem) != _name(problem.dtype):
            tolerance = _REDUCED

        def check(values: Sequence[torch.Tensor], got: torch.Tensor) -> str | None:
            return _check(values[0], values[1], got, tolerance)

        return Operation(
            torch.mm if batch == 1 else torch.bmm,
            (a, b),
            nbytes=batch * (m * k + k * n + m * n) * problem.dtype.itemsize,
            flops=2 * batch * m * n * k,
            check=check,
            tolerance=tolerance,
            waits=as_it_waits(problem),
            prepare=lambda tiles: _prepare(tiles, problem.dtype),
        )


def _prepare(tiles: Sequence[Tile], dtype: torch.dtype) -> None:
    device = context.get()
    trials = [tile.trial(device.info, dtype) for tile in tiles if isinstance(tile, WorkgroupTile) and not tile.emulated]
    device.components.prefetch([sums for sums in trials if sums is not None])


def as_it_waits(problem: Problem) -> bool:
    """Whether its place between other kernels may choose another tile than the product by itself would take."""
    return problem.waits and problem.half and problem.batch * problem.m * problem.n <= waiting.MOST_ELEMENTS


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _kind(problem: Problem) -> str:
    precision = torch.get_float32_matmul_precision()
    reduced = problem.dtype == torch.float32 and precision != "highest"
    return f"{_name(problem.dtype)}:{precision}" if reduced else _name(problem.dtype)


def layout(problem: Problem) -> str:
    """As BLAS names it: n or t for each operand; s where no dimension is contiguous."""
    return {"k": "n", "m": "t"}.get(problem.a_contiguous, "s") + {"n": "n", "k": "t"}.get(problem.b_contiguous, "s")


def problem_of(batch: int, m: int, n: int, k: int, dtype: torch.dtype, layout: str = "nn") -> Problem:
    """The problem of contiguous operands; ``layout``: "nn", "nt" (nn.Linear's weight), "tn" or "tt"."""
    a, b = {"n": "k", "t": "m"}[layout[0]], {"n": "n", "t": "k"}[layout[1]]
    sizes = {"k": k, "m": m, "n": n}
    widest = max(1, WIDEST // dtype.itemsize)
    return Problem(
        batch,
        m,
        n,
        k,
        dtype,
        static=True,
        a_contiguous=a,
        b_contiguous=b,
        a_width=vector_width(sizes[a], widest),
        b_width=vector_width(sizes[b], widest),
    )


def operands(problem: Problem) -> tuple[Operand, Operand]:
    """Operands with the problem's sizes, contiguous dimensions and vector widths."""
    a = (problem.batch, problem.m, problem.k), problem.a_contiguous == "k", problem.a_contiguous, problem.a_width
    b = (problem.batch, problem.k, problem.n), problem.b_contiguous == "n", problem.b_contiguous, problem.b_width
    made = [_operand(problem.dtype, *spec) for spec in (a, b)]
    return made[0], made[1]


def _operand(dtype: torch.dtype, size: tuple[int, int, int], rows: bool, along: str, width: int) -> Operand:
    inner, outer = (size[2], size[1]) if rows else (size[1], size[2])
    step = 1
    if not along:
        inner, outer, step, rows = size[2], size[1], 2, True
    widest = max(1, WIDEST // dtype.itemsize)
    # Rows that begin at multiples of ``width`` and of no more.
    pitch = inner * step if step > 1 or vector_width(inner, widest) <= width else inner + width
    stride = (pitch, step) if rows else (step, pitch)
    if size[0] == 1:
        return Operand(size[1:], stride, dtype)
    return Operand(size, (outer * pitch, *stride), dtype)


def _check(a: torch.Tensor, b: torch.Tensor, got: torch.Tensor, tolerance: tuple[float, float]) -> str | None:
    m = a.shape[-2]
    generator = torch.Generator().manual_seed(0)
    rows = sorted({0, m - 1, *torch.randint(m, (_ROWS - 2,), generator=generator).tolist()})
    exact = torch.float64 if a.dtype.is_floating_point else torch.int64
    for batch in sorted({0, prod(a.shape[:-2]) - 1}) if a.dim() == 3 else [None]:
        left, right, found = (a, b, got) if batch is None else (a[batch], b[batch], got[batch])
        want = (left[rows].to(exact) @ right.to(exact)).to(a.dtype)
        wrong = compare.difference(found[rows], want, tolerance)
        if wrong is not None:
            return f"in rows {rows}: {wrong}"
    return None


GEMM = Gemm()
