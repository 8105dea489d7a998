"""Into how many parts reductions are cut, as a family: a problem as aten.sum, its reference.

The numbers are chosen while a graph is lowered, when it is not known yet what will be fused with the reduction: a plain
sum stands for it. The layouts of the kernels that come of it are `kernels`' problems.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from vkinductor.runtime.deviceinfo import DeviceInfo

from .. import heuristics, splits
from ..splits import Problem
from . import compare
from .family import Bucket, Operand, Operation, Size

# Results that are compared with sums in double precision, of the first and of the last ones.
_RESULTS = 4
# (relative, share of the root mean square): what rounding the result, and adding up in another order, may change.
_TOLERANCE = {torch.float16: (2e-3, 1e-3), torch.bfloat16: (1.6e-2, 2e-3), torch.float32: (1e-4, 1e-4)}


class Splits:
    """The family of reductions in parts; problems are `splits.Problem`."""

    name = "split"
    sources: tuple[str, ...] = (
        "codegen/heuristics.py",
        "codegen/kernel.py",
        "codegen/reductions.py",
        "codegen/splits.py",
        "codegen/tuning/splits.py",
        "templates",
    )

    def bucket(self, problem: Problem) -> Bucket:
        dtype = str(problem.dtype).removeprefix("torch.")
        several = f" of {problem.reads}" if problem.reads > 1 else ""
        return Bucket(
            f"{dtype} {problem.kind}{several}", (Size("results", problem.results), Size("length", problem.length))
        )

    def candidates(self, info: DeviceInfo, problem: Problem) -> Sequence[int]:
        return splits.candidates(problem)

    def label(self, candidate: int) -> str:
        return f"parts={candidate}"

    def estimate(self, info: DeviceInfo, problem: Problem, candidate: int) -> float:
        """All alike: there are few."""
        return 1.0

    def forced(self, candidate: int) -> AbstractContextManager[Any]:
        return heuristics.override(parts=candidate)

    def operation(self, problem: Problem) -> Operation:
        results, length, dtype = problem.results, problem.length, problem.dtype
        size = (results, length) if problem.kind == "rows" else (length, results)
        dim = 1 if problem.kind == "rows" else 0
        tolerance = _TOLERANCE.get(dtype, (1e-9, 1e-9))
        exact = torch.float64 if dtype.is_floating_point else torch.int64

        def total(*operands: Any) -> Any:
            return torch.ops.aten.sum.dim_IntList(functools.reduce(torch.ops.aten.add.Tensor, operands), [dim])

        def check(values: Sequence[torch.Tensor], got: torch.Tensor) -> str | None:
            some = sorted({*range(results)[:_RESULTS], *range(results)[-_RESULTS:]})
            want = torch.stack([x.index_select(1 - dim, torch.tensor(some)).sum(dim, dtype=exact) for x in values]).sum(
                0
            )
            wrong = compare.difference(got[some], want.to(got.dtype), tolerance)
            return None if wrong is None else f"in results {some}: {wrong}"

        operands = (Operand(size, (size[1], 1), dtype),) * problem.reads
        nbytes = results * (problem.reads * length + 1) * dtype.itemsize
        return Operation(total, operands, nbytes, 0, check, tolerance)


SPLITS = Splits()
