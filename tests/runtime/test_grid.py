"""Folding workgroup counts."""

from __future__ import annotations

import pytest

from vkinductor.runtime.deviceinfo import Limits
from vkinductor.runtime.errors import UnsupportedError
from vkinductor.runtime.grid import fold

LIMITS = Limits()
SMALL = Limits(max_workgroup_count=(7, 5, 3))


@pytest.mark.parametrize(
    "n", [0, 1, 65535, 65536, 65537, 65536 * 256 + 1, 2_703_360, 65535 * 65535, 65535 * 65535 + 1, 2**40]
)
def test_fold_covers_n_within_the_limits(n):
    x, y, z = fold(n, LIMITS)
    assert x * y * z >= n
    assert max(x, y, z) <= 65535
    assert x * y * z - n <= max(y * z, 1) * max(z, 1) + n // 1000


@pytest.mark.parametrize("n", range(1, 7 * 5 * 3 + 1))
def test_every_count_up_to_the_product_fits(n):
    x, y, z = fold(n, SMALL)
    assert x * y * z >= n
    assert x <= 7
    assert y <= 5
    assert z <= 3


def test_small_counts_are_not_folded():
    assert fold(65535, LIMITS) == (65535, 1, 1)


def test_too_many_workgroups_say_so():
    with pytest.raises(UnsupportedError, match="106 workgroups"):
        fold(106, SMALL)
