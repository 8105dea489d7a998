"""The device's own conversions to bfloat16: the question that is asked of it, and who is not asked."""

from __future__ import annotations

import numpy as np
import pytest

from vkinductor.runtime import bfloat16

BITS = (np.arange(1 << 16, dtype=np.uint32)[:, None] << 16 | np.array([1, 0x7FFF, 0x8000, 0x8001], np.uint32)).ravel()
NAN = (BITS & 0x7FFFFFFF) > 0x7F800000
NEAREST = (BITS + np.uint32(0x7FFF) + (BITS >> 16 & 1)) >> 16

# GLSL of `bits` -> what it gives.
CONVERSIONS = {
    "(bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16": np.where(
        NAN, np.uint32(0x7FFF), NEAREST
    ),
    "(bits + 0x7fffu + (bits >> 16 & 1u)) >> 16": NEAREST,  # the highest NaN overflow
    "(bits + 0x8000u) >> 16": (BITS + np.uint32(0x8000)) >> 16,
    "bits >> 16": BITS >> 16,
}


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_what_rounds_otherwise_is_found(device, conversion):
    got = CONVERSIONS[conversion]
    right = np.where(NAN, (got & 0x7FFF) > 0x7F80, got == NEAREST)
    assert bfloat16.wrong(device, "", f"uvec3({conversion})") == (~right).sum()
    assert right.all() == ("?" in conversion)


def test_a_device_without_the_type_is_not_asked(device):
    if not device.info.features.shader_bfloat16:
        assert not device.rounds_bfloat16
