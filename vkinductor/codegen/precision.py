"""How exact a kernel's functions have to be.

What a kernel rounds to 16 bits is off by 2^-12 of itself (half precision) or more, and eager operators round so after
each step. Where nothing but such results depends on them, exponentials come from the device's own exp2, which the
specification has good to 3 + 2|x| units in the last place (2^-15 at the ends of its range, 2^-19 near 1): elementwise
kernels on halves are bound by their arithmetic, and a polynomial takes a dozen instructions more.
"""

from __future__ import annotations

from collections.abc import Iterable

from vkinductor.runtime.deviceinfo import DeviceInfo

from . import heuristics
from .vectorize import Access


def half_results(info: DeviceInfo, accesses: Iterable[Access], atomics: bool) -> bool:
    """Whether a kernel with these ``accesses`` (and ``atomics``, which are none of them) reads no floats but those of
    16 bits, and writes only such."""
    stores = [access.dtype for access in accesses if access.store]
    floats = [access.dtype for access in accesses if access.store or access.dtype.is_floating_point]
    exact = atomics or not stores or any(not d.is_floating_point or d.itemsize != 2 for d in floats)
    return not exact and heuristics.device_exp2(info)
