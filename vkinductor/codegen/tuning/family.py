"""What the tuner asks of a family of kernels, and the names it keeps results under.

A family (matrix products, attention, ...) says which candidates a problem has, how to force one, and what a problem is
as an operator on tensors. The tuner knows nothing else about it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from vkinductor.runtime.deviceinfo import DeviceInfo


@dataclass(frozen=True)
class Size:
    """One size of a problem. A size that varies stands for all between two powers of two."""

    name: str
    value: int
    static: bool = True

    @property
    def rounded(self) -> int:
        """The size itself, or the power of two at or above one that varies."""
        return self.value if self.static else 1 << max(0, self.value - 1).bit_length()

    def __str__(self) -> str:
        return f"{self.name}{'=' if self.static else '~'}{self.rounded}"


@dataclass(frozen=True)
class Bucket:
    """The problems that share a result. ``kind``: what has to be equal (dtypes, layouts)."""

    kind: str
    sizes: tuple[Size, ...]

    def __str__(self) -> str:
        return " ".join([self.kind, *map(str, self.sizes)])


@dataclass(frozen=True)
class Operand:
    """A tensor of a problem, sizes and strides in elements. ``below``: its integers are indices, from 0 to below this;
    0: they are any."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    below: int = 0


def vector_width(size: int, widest: int) -> int:
    """Elements of a load along rows of ``size`` that lie one after the other: the largest power of two up to ``widest``
    (one) that divides it."""
    while size % widest:
        widest //= 2
    return widest


# Says what is wrong with a result, given the operands and the result as CPU tensors; None when it is right.
Check = Callable[[Sequence[torch.Tensor], torch.Tensor], "str | None"]


@dataclass(frozen=True)
class Operation:
    """A problem as what can be run: candidates are compiled from ``function`` of the operands, which returns one
    tensor, by Inductor, or, where that is None, by ``program``.

    ``nbytes``, ``flops``: what has to be moved and computed at least. ``check``: compares with a reference; None: the
    heuristic's choice is the reference. ``tolerance``: (relative, share of the result's root mean square) that two
    right results may differ by; None: what rounding to its dtype allows.
    ``program(candidate)``: what takes the operands' tensors, launches kernels, and returns the results, which may be
    operands that were written. Raises when there is none. ``results``: bytes of those results that are no operands.
    ``waits``: whether it stands between kernels that it waits for and that wait for it, so that no more is to be timed.
    ``prepare(candidates)``: starts what lowering these waits for, and returns at once.
    """

    function: Callable[..., torch.Tensor] | None
    operands: tuple[Operand, ...]
    nbytes: int
    flops: int
    check: Check | None
    tolerance: tuple[float, float] | None
    program: Callable[[Any], Callable[[list[Any]], Sequence[torch.Tensor]]] | None = None
    results: int = 0
    waits: bool = False
    prepare: Callable[[Sequence[Any]], None] | None = None


class Family(Protocol):
    """A family of kernels. ``sources``: paths in the package, files or folders, that decide what candidates are."""

    name: str
    sources: tuple[str, ...]

    def bucket(self, problem: Any) -> Bucket:
        """Where a problem's result is kept."""
        ...

    def candidates(self, info: DeviceInfo, problem: Any) -> Sequence[Any]:
        """What the device can run, the heuristic's choice first."""
        ...

    def label(self, candidate: Any) -> str:
        """A candidate's name, unique among those of a problem; it is what is stored."""
        ...

    def estimate(self, info: DeviceInfo, problem: Any, candidate: Any) -> float:
        """A rough time, comparable among the candidates of a problem."""
        ...

    def forced(self, candidate: Any) -> AbstractContextManager[Any]:
        """Inside, this thread's kernels of the family are ``candidate``."""
        ...

    def operation(self, problem: Any) -> Operation:
        """The problem as an operator; of sizes that vary, the likely ones."""
        ...


# A candidate whose estimate is so many times the best one's is not timed.
HOPELESS = 3.0


def pruned(family: Family, info: DeviceInfo, problem: Any) -> list[Any]:
    """The candidates worth timing: the heuristic's choice, then the others from the best estimate to the worst."""
    first, *others = family.candidates(info, problem)
    known = {family.label(first)}
    estimates: list[tuple[float, Any]] = []
    for candidate in others:
        label = family.label(candidate)
        if label not in known:
            known.add(label)
            estimates.append((family.estimate(info, problem, candidate), candidate))
    least = min([family.estimate(info, problem, first), *(e for e, _ in estimates)])
    kept = [pair for pair in estimates if pair[0] <= HOPELESS * least]
    return [first, *(c for _, c in sorted(kept, key=lambda pair: pair[0]))]


@functools.cache
def version(sources: tuple[str, ...]) -> str:
    """Hash of the code that decides what candidates are and what they compile to."""
    import vkinductor

    root = Path(vkinductor.__file__).parent
    digest = hashlib.sha256()
    for source in sources:
        path = root / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in (".py", ".jinja", ".glsl"):
                digest.update(file.relative_to(root).as_posix().encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
