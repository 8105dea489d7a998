"""How the kernel of fused linear layers is cut: the workgroup, its teams, what each has on its way."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vkinductor.runtime.deviceinfo import DeviceInfo

from .. import heuristics
from ..quantized.gemv import QuantizedTile

# Rows of x that share a read of the weights, and sums that an invocation keeps in registers.
MOST_ROWS = 8
_MOST_SUMS = 80


@dataclass(frozen=True)
class FusedTile(QuantizedTile):
    """``threads`` a workgroup in teams of ``lanes``, each for ``rows`` rows of weights (of each of two with a gate)."""

    def holds(self, info: DeviceInfo, m: int, gated: bool) -> bool:
        """Whether a workgroup for ``m`` rows of x is within the device's limits and an invocation's registers."""
        limits = info.limits
        sums = (self.rows * (2 if gated else 1) + 1) * m
        together = self.cluster(info)
        slices = self.lanes // together if together > 1 else 1
        floats = self.threads // self.lanes * slices * sums + self.threads
        invocations = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
        return self.threads <= invocations and sums <= _MOST_SUMS and 4 * floats <= limits.max_shared_memory


_forced: contextvars.ContextVar[FusedTile | None] = contextvars.ContextVar("vkinductor_fused_tile", default=None)


@contextlib.contextmanager
def forced(tile: FusedTile) -> Iterator[None]:
    """Every operator lowered inside takes ``tile`` (for tests and measurements; graph caches do not know of it)."""
    token = _forced.set(tile)
    try:
        yield
    finally:
        _forced.reset(token)


def is_forced() -> bool:
    """Whether a tile is forced here."""
    return _forced.get() is not None


def tile_of(info: DeviceInfo, m: int, sizes: Sequence[int], chunks: int, gated: bool) -> FusedTile:
    """The tile for ``m`` rows of x and weights of ``sizes`` rows of (the fewest) ``chunks``."""
    tile = _forced.get()
    if tile is not None:
        return tile
    n = sizes[0] if gated else sum(sizes)
    rows, loads, most = (4, 2, 64) if m < 4 else (2, 2, 32)
    if gated:
        rows //= 2
        # With the product behind it 24.5 instead of 25.9 us for 2 x 5632 x 2048 in halves (an H200).
        most = 128 if m < 4 else most
    lanes = min(most, max(8, 1 << max(0, (-(-chunks // loads)).bit_length() - 1)))
    # As in gemm/skinny.py: 8.2 instead of 9.9 us for norm, q, k and v of 2560 x 2048.
    many = m < 4 and not gated and n >= 2048
    threads = heuristics.program_workgroup(info) or max(256 if many else 64 if m < 4 else 128, lanes)
    # Few outputs: more workgroups.
    while rows > 1 and n < 512 * rows * (threads // lanes):
        rows //= 2
    found = FusedTile(threads, lanes, rows, loads)
    return found if found.holds(info, m, gated) else FusedTile(32, 32, 1, 1)
