"""A matrix product as the choice of a kernel sees it: sizes, dtype, where operands are contiguous and how wide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor.virtualized import V

from .. import heuristics
from ..alignment import divides, vector_width
from ..compat import size_hint
from ..types import glsl_type
from .prologue import Prologue

# The most rows (or columns) of a result for which reading the weights is what takes the time.
MOST_ROWS = 16


@dataclass(frozen=True)
class Problem:
    """C[batch, m, n] = sum over k of A[batch, m, k] * B[batch, k, n].

    Sizes are hints where they vary; ``static``: none does. ``a_contiguous``: the dimension of A with stride 1, "k",
    "m" or "" for neither; ``b_contiguous``: that of B, "k", "n" or "". ``a_width``, ``b_width``: elements that one load
    of up to 16 bytes may take along it (1 where there is none). ``a_operations``, ``b_operations``: what computing an
    element takes while it is loaded; 0: it is in memory.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: torch.dtype
    static: bool = True
    a_contiguous: str = "k"
    b_contiguous: str = "n"
    a_width: int = 1
    b_width: int = 1
    a_operations: int = 0
    b_operations: int = 0
    # Whether it stands between other kernels, which it waits for and which wait for it (``waiting``).
    waits: bool = False
    # Whether ``k`` is one number although other sizes vary, as a linear layer's is.
    static_k: bool = False
    # Of B in memory, where it is another than that of the product: each element is converted when it is loaded.
    weights: torch.dtype | None = None

    @property
    def k_is_known(self) -> bool:
        """Whether the sum has ``k`` terms at every call."""
        return self.static or self.static_k

    @property
    def computed(self) -> bool:
        """Whether an operand is computed while it is loaded."""
        return bool(self.a_operations or self.b_operations)

    @property
    def accumulator_bytes(self) -> int:
        """Bytes of an element of the sum."""
        return max(4, glsl_type(self.dtype).nbytes)

    @property
    def half(self) -> bool:
        """Whether operands are float16 or bfloat16."""
        return self.dtype in (torch.float16, torch.bfloat16)


def contiguous(operand: Any, outer: str) -> str:
    """Which of the last two dimensions of ``operand`` has stride 1: ``outer`` names the one that is not k."""
    if isinstance(operand, Prologue):
        return ((outer, "k") if outer == "m" else ("k", outer))[operand.inner]
    size, stride = operand.get_layout().size[-2:], operand.get_layout().stride[-2:]
    names = (outer, "k") if outer == "m" else ("k", outer)
    # Of a single row or column nothing is known: its stride is anything.
    known = [(name, s == 1, n != 1) for name, n, s in zip(names, size, stride, strict=True)]
    found = [name for name, one, many in reversed(known) if one and many] or [name for name, one, _ in known if one]
    return found[0] if found else ""


def _rows(size: Any) -> int:
    """A hint for the rows or columns of a result. Not a few where the number varies and may be large: a kernel for few
    rows would read the weights again for each few of many, while one for many wastes arithmetic on few."""
    hint = size_hint(size)
    few = not sympy.sympify(size).free_symbols or V.graph.sizevars.statically_known_leq(size, MOST_ROWS)
    return hint if few else max(hint, MOST_ROWS + 1)


def _width(operand: Any, dim: int) -> int:
    if isinstance(operand, Prologue):
        return next(width for width in (8, 4, 2, 1) if divides(width, operand.size[dim]))
    return vector_width(operand, dim)


def describe(a: Any, b: Any) -> Problem:
    """The problem of ``a`` [batch, m, k] or [m, k] times ``b``: laid out in memory, or computed."""
    sizes = [*(a.get_size()[:-2] or [sympy.S.One]), a.get_size()[-2], b.get_size()[-1], a.get_size()[-1]]
    along_a, along_b = contiguous(a, "m"), contiguous(b, "n")
    batch, k = size_hint(sizes[0]), size_hint(sizes[3])
    m, n = (_rows(size) for size in sizes[1:3])
    known = [isinstance(V.graph.sizevars.simplify(s), (int, sympy.Integer)) for s in sizes]
    return Problem(
        batch,
        m,
        n,
        k,
        a.get_dtype(),
        static=all(known),
        static_k=known[3],
        a_contiguous=along_a,
        b_contiguous=along_b,
        a_width=_width(a, {"k": -1, "m": -2}[along_a]) if along_a else 1,
        b_width=_width(b, {"n": -1, "k": -2}[along_b]) if along_b else 1,
        waits=heuristics.products() > 1,
        a_operations=a.operations if isinstance(a, Prologue) else 0,
        b_operations=b.operations if isinstance(b, Prologue) else 0,
    )
