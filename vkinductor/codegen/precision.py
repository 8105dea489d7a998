"""How exact a kernel's functions have to be.

What a kernel rounds to 16 bits is off by 2^-12 of itself (half precision) or more, and eager operators round so after
each step. Where nothing but such results depends on them, exponentials come from the device's own exp2, which the
specification has good to 3 + 2|x| units in the last place (2^-15 at the ends of its range, 2^-19 near 1): elementwise
kernels on halves are bound by their arithmetic, and a polynomial takes a dozen instructions more.

Of what was read in 32 bits, as the statistics of a row are, exponentials may be so, too: the error is that of an
argument which is off by some units in its own last place, and one that was computed is. What the library makes of
them is so, too (the sigmoid, hyperbolic functions: polynomials where they would cancel). Other functions are not:
their short forms know that an argument in 16 bits has no more to tell.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from vkinductor.runtime.deviceinfo import DeviceInfo

from . import heuristics
from .vectorize import Access


def half_powers(info: DeviceInfo, accesses: Iterable[Access], atomics: bool) -> bool:
    """Whether exponentials may be as exact as 16 bits: a kernel with these ``accesses`` (and ``atomics``, which are
    none of them) writes nothing else, and reads no floats of more than 32 bits."""
    accesses = list(accesses)
    stores = [access.dtype for access in accesses if access.store]
    narrow = all(access.dtype.itemsize <= 4 for access in accesses if access.dtype.is_floating_point)
    return not atomics and bool(stores) and narrow and all(map(_is_half, stores)) and heuristics.device_exp2(info)


def half_results(info: DeviceInfo, accesses: Iterable[Access], atomics: bool) -> bool:
    """Whether all functions may be: it reads no floats but those of 16 bits, either."""
    accesses = list(accesses)
    floats = [access.dtype for access in accesses if access.dtype.is_floating_point]
    return all(map(_is_half, floats)) and half_powers(info, accesses, atomics)


def _is_half(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize == 2
