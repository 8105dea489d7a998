"""Loops that a driver ends early, and how kernels stay below that.

lavapipe, the Vulkan driver of Mesa's llvmpipe, ends loops after LP_MAX_TGSI_LOOP_ITERATIONS (65535) passes and says
nothing: results are wrong. What a probe of it shows (Mesa 22.3.6; 25.0.7 has no limit):

* One counter, of 65535, for each subgroup of 8 invocations and each run of the shader; nothing sets it back in between:
  neither a barrier nor leaving a loop or a function. Other subgroups and workgroups have their own.
* A pass counts once when any invocation of the subgroup makes it, whatever others do: those that left the loop wait.
* All loops count together: a loop of n trips inside one of m costs m * (n + 2), since the pass that finds an inner loop
  at its end counts as well.
* Once it is used up, each further loop makes one pass at most.
* A body that is written out several times in one pass counts once; so does what the driver unrolls itself.

Long loops therefore take several elements a pass, run in more invocations, or are cut into parts. Sizes that vary are
guarded: past what a kernel can do, the program is compiled again. ``Limits.max_loop_iterations`` is the one place that
knows the number; on devices without the limit nothing here has any effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor.dependencies import MemoryDep
from torch._inductor.ir import TensorBox
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from vkinductor.runtime.deviceinfo import UNLIMITED, DeviceInfo
from vkinductor.runtime.errors import UnsupportedError

from .compat import size_hint

# Elements written out in one pass where that is enough: further ones add to the compile time, lanes do not.
USUAL_UNROLL = 8
LARGEST_UNROLL = 256

# Elements of a row whose length data decide.
_UNKNOWN_ROW = 1 << 22

# Inductor's operations whose GLSL has a loop that depends on values -> its passes: (float32 or integer, float64).
_PASSES = {
    "bucketize": (34, 34),
    "digamma": (10, 14),
    "fmod": (10, 190),
    "igamma": (500, 1200),
    "igammac": (500, 1200),
    "lgamma": (10, 14),
    "mod": (10, 190),
    "polygamma": (80, 240),
    "remainder": (10, 190),
    "zeta": (40, 60),
    **dict.fromkeys(("cos", "sin", "tan"), (0, 110)),
    **{
        f"{family}_polynomial_{kind}": (256, 256)
        for family, kinds in (
            ("chebyshev", "tuvw"), ("shifted_chebyshev", "tuvw"), ("laguerre", "l"), ("legendre", "p"),
        )
        for kind in kinds
    },
    **{f"hermite_polynomial_{kind}": (130, 130) for kind in ("h", "he")},
}  # fmt: skip
_WITHOUT_FOR_INTEGERS = ("fmod", "mod", "remainder")
# Powers of integers, by squaring.
_INTEGER_POWER = 66


def limited(info: DeviceInfo) -> bool:
    """Whether ``info`` ends long loops."""
    return info.limits.max_loop_iterations < UNLIMITED


def budget(info: DeviceInfo) -> int:
    """Passes that the long loops of an invocation may make together; the rest is for short ones (folds, searches)."""
    return info.limits.max_loop_iterations * 15 // 16


def passes_within(info: DeviceInfo, nodes: Iterable[Any]) -> int:
    """Passes of the loops inside the expressions of scheduler ``nodes``, an element; 0 on a device without a limit."""
    total = 0
    for node in nodes if limited(info) else ():
        body = getattr(node, "_body", None)
        if body is None:
            continue
        dtypes = {V.graph.get_dtype(dep.name) for dep in node.read_writes.reads if isinstance(dep, MemoryDep)}
        wide = torch.float64 in dtypes
        floats = any(dtype.is_floating_point for dtype in dtypes)
        integers = any(not dtype.is_floating_point for dtype in dtypes)
        for name, count in body.op_counts.items():
            total += count * _passes(name, floats, wide, integers)
    return total


def _passes(name: str, floats: bool, wide: bool, integers: bool) -> int:
    """Passes of Inductor's operation ``name``, where there are operands of any float, of float64, of integers."""
    if name == "pow":
        return _INTEGER_POWER if integers else 0
    if name not in _PASSES or (name in _WITHOUT_FOR_INTEGERS and not floats):
        return 0
    return _PASSES[name][wide]


def lanes(info: DeviceInfo, lanes: int, largest: int, row: int, within: int = 0) -> int:
    """At least ``lanes`` invocations for a row of (likely) ``row`` elements, a power of two up to ``largest``.

    ``within``: passes of inner loops an element.
    """
    # As for one loop over the row: more of them take more elements a pass.
    while limited(info) and lanes < largest and reach(info, lanes, 1 if within else USUAL_UNROLL, 1, within) < row:
        lanes *= 2
    return lanes


def reach(info: DeviceInfo, lanes: int, unroll: int, loops: int, within: int = 0) -> int:
    """The longest row that ``loops`` loops of ``lanes`` invocations get through, ``unroll`` elements a pass."""
    share = budget(info) // loops
    # A pass takes ``unroll`` elements a lane and costs 1 + unroll * within.
    return max(share // (1 + unroll * within) - 1, 0) * unroll * lanes


def likely_row(info: DeviceInfo, row: Any) -> int:
    """A likely length of ``row`` to lay a kernel out for; a large one where data decide, as no guard can tell then."""
    return max(size_hint(row), _UNKNOWN_ROW) if limited(info) and free_unbacked_symbols(row) else size_hint(row)


def unrolled(info: DeviceInfo, row: Any, lanes: int, loops: int, within: int = 0, what: str = "a reduction") -> int:
    """How many elements a pass of ``loops`` loops over ``row`` takes; the program is for rows that this is enough for.

    Where data decide the length, the program checks it (``check_length``). Raises UnsupportedError, about ``what``,
    where no number is enough.
    """
    if not loops or not limited(info):
        return 1
    unroll, hint = 1, likely_row(info, row)
    while not within and unroll < LARGEST_UNROLL and reach(info, lanes, unroll, loops) < hint:
        unroll *= 2
    most = reach(info, lanes, unroll, loops, within)
    if free_unbacked_symbols(row):
        wrapper: Any = V.graph.wrapper_code
        wrapper.writeline("from vkinductor.codegen.loop_limit import check_length")
        wrapper.writeline(f"check_length({wrapper.codegen_python_sizevar(row)}, {most}, {what!r})")
    else:
        require(row, most, what)
    return unroll


def fusable(info: DeviceInfo, nodes: Sequence[Any]) -> bool:
    """Whether one kernel for scheduler ``nodes`` can stay below the limit."""
    rows = [node for node in nodes if node.is_reduction()] if limited(info) else []
    if not rows:
        return True
    _, (_, row) = rows[0].group
    within = passes_within(info, nodes)
    scans = any(body.op_counts["scan"] for node in rows if (body := getattr(node, "_body", None)) is not None)
    lanes = 1 if scans else min(info.limits.max_workgroup_invocations, info.limits.max_workgroup_size[0])
    unroll = 1 if scans or within else LARGEST_UNROLL
    return reach(info, lanes, unroll, len(rows) + 1, within) >= size_hint(row)


def realizing(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Around the lowering of an operator with loops (Inductor's operation ``name``): its result is a buffer.

    Inductor would write it into the loop of whatever reduces it. The scheduler puts it there where that is possible
    (``fusable``).
    """

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def lower(*args: Any, **kwargs: Any) -> Any:
            from vkinductor.runtime import context

            result, info = original(*args, **kwargs), context.get().info
            if isinstance(result, TensorBox) and limited(info):
                dtype = result.get_dtype()
                floats = dtype.is_floating_point
                each = _passes(name, floats, dtype == torch.float64, not floats)
                if each * size_hint(sympy_product(result.get_size())) > budget(info):
                    result.realize()
            return result

        return lower

    return around


# Operators with loops of their own (and powers of integers) -> Inductor's operation.
LOOPING = {
    **{name: name for name in _PASSES if "polynomial" not in name and name not in ("mod", "zeta")},
    "searchsorted": "bucketize",
    "special_zeta": "zeta",
    **{f"special_{name}": name for name in _PASSES if "polynomial" in name},
}


def require(size: Any, most: int, what: str) -> None:
    """Guard that ``size`` is at most ``most``. Raises UnsupportedError where it is more, or is not known."""
    if not V.graph.sizevars.guard_or_false(sympy.Le(size, most)):
        raise _too_long(size, most, what)


def check_length(size: int, most: int, what: str) -> None:
    """Raise UnsupportedError if a loop over ``size`` elements, in a program that is running, is too long."""
    if size > most:
        raise _too_long(size, most, what)


def _too_long(size: Any, most: int, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} over {size} elements: this driver ends the loop after {most} of them. Compute its operand outside of "
        f"the compiled function, or use a driver without that limit (Mesa 25 has none)"
    )
