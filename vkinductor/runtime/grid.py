"""Folding a one-dimensional count of workgroups into the three dimensions a device accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkinductor.runtime.errors import UnsupportedError

if TYPE_CHECKING:
    from vkinductor.runtime.deviceinfo import Limits

# The linear workgroup id a folded kernel computes; it may exceed the count asked for, so kernels test it.
LINEAR_GROUP_ID = "(gl_WorkGroupID.x + gl_NumWorkGroups.x * (gl_WorkGroupID.y + gl_NumWorkGroups.y * gl_WorkGroupID.z))"


def _ceildiv(a: int, b: int) -> int:
    return -(-a // b)


def fold(n: int, limits: Limits) -> tuple[int, int, int]:
    """(x, y, z) with x*y*z >= n within the device's workgroup counts, and little waste.

    The linear id is x + y*X + z*X*Y (`LINEAR_GROUP_ID`). n = 0 gives (0, 1, 1), which a stream does not
    dispatch.

    Raises:
        UnsupportedError: n exceeds the product of the three limits.
    """
    max_x, max_y, max_z = limits.max_workgroup_count
    if n <= max_x:
        return (n, 1, 1)
    if n > max_x * max_y * max_z:
        raise UnsupportedError(
            f"{n} workgroups exceed the device's {max_x} x {max_y} x {max_z}: give each workgroup more work"
        )
    z = _ceildiv(n, max_x * max_y)
    layer = _ceildiv(n, z)
    y = min(_ceildiv(layer, max_x), max_y)
    return (_ceildiv(layer, y), y, z)
