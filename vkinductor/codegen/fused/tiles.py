"""How the kernel of fused linear layers is cut: the workgroup, its teams, what each has on its way."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from vkinductor.runtime.deviceinfo import DeviceInfo

from .. import heuristics
from ..gemm.side_by_side import serves
from ..gemm.skinny import MOST_CHUNKS, whole_rows
from ..quantized.gemv import QuantizedTile

# Rows of x that share a read of the weights (more are bound by arithmetic), and sums that an invocation keeps in
# registers.
MOST_ROWS = 8
_MOST_SUMS = 80
# Chunks of weights so few that reading them takes less than waiting for them: 4 MB in halves.
_FEW_CHUNKS = 1 << 18


@dataclass(frozen=True)
class FusedTile(QuantizedTile):
    """``threads`` a workgroup in teams of ``lanes``, each for ``rows`` rows of weights (of each of two with a gate).

    ``turns``: workgroups at most, each of which takes several such tiles; 0: one each.
    """

    turns: int = 0

    def holds(self, info: DeviceInfo, m: int, gated: bool) -> bool:
        """Whether a workgroup for ``m`` rows of x is within the device's limits and an invocation's registers."""
        limits = info.limits
        sums = (self.rows * (2 if gated else 1) + 1) * m
        together = self.cluster(info)
        slices = self.lanes // together if together > 1 else 1
        floats = self.threads // self.lanes * slices * sums + self.threads
        invocations = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
        return self.threads <= invocations and sums <= _MOST_SUMS and 4 * floats <= limits.max_shared_memory


def one_product(info: DeviceInfo, rows: int, sizes: Sequence[int], k: int, dtype: torch.dtype) -> bool:
    """Whether linear layers of ``rows``, more than share a read, with weights [n, ``k``] for each n of ``sizes`` and
    nothing else (blocks, biases, a gate, a norm) are one matrix product."""
    return rows > MOST_ROWS and serves(info, rows, sizes, k, dtype)


_forced: contextvars.ContextVar[FusedTile | None] = contextvars.ContextVar("vkinductor_fused_tile", default=None)


@contextlib.contextmanager
def forced(tile: FusedTile) -> Iterator[None]:
    """Every operator lowered inside takes ``tile`` (for tests and measurements; graph caches do not know of it)."""
    token = _forced.set(tile)
    try:
        yield
    finally:
        _forced.reset(token)


def forced_tile() -> FusedTile | None:
    """The tile that is forced here, if any."""
    return _forced.get()


def tile_of(info: DeviceInfo, m: int, sizes: Sequence[int], chunks: int, gated: bool, dense: bool) -> FusedTile:
    """The tile for ``m`` rows of x and weights of ``sizes`` rows of (the fewest) ``chunks``, all ``dense`` or not."""
    n = sizes[0] if gated else sum(sizes)
    common = heuristics.program_workgroup(info)
    if m == 1 and dense and common is None:
        latency = _latency_tile(info, n, chunks, gated)
        if latency is not None and latency.holds(info, m, gated):
            return latency
    rows, loads, most = (4, 2, 64) if m < 4 else (2, 2, 32)
    if gated:
        rows //= 2
        # With the product behind it 24.5 instead of 25.9 us for 2 x 5632 x 2048 in halves (an H200).
        most = 128 if m < 4 else most
    lanes = min(most, max(8, 1 << max(0, (-(-chunks // loads)).bit_length() - 1)))
    # As in gemm/skinny.py: 8.2 instead of 9.9 us for norm, q, k and v of 2560 x 2048.
    many = m < 4 and not gated and n >= 2048
    threads = common or max(256 if many else 64 if m < 4 else 128, lanes)
    # Few outputs: more workgroups.
    while rows > 1 and n < 512 * rows * (threads // lanes):
        rows //= 2
    # Q8_0, 2 x 5632 x 2048: 0.7 us less for that (H200).
    hurries = m == 1 and gated and info.kind != "cpu"
    found = FusedTile(threads, lanes, rows, loads, flat=hurries, own=m < 4 and info.kind != "cpu")
    return found if found.holds(info, m, gated) else FusedTile(32, 32, 1, 1)


def _latency_tile(info: DeviceInfo, n: int, chunks: int, gated: bool) -> FusedTile | None:
    """The tile for one row of x where every dispatch of a step waits for the one before, measured in chains of them
    (H200, halves); None: no such."""
    if info.kind == "cpu":
        return None
    # Whole rows of weights are on their way at once, two a workgroup: norm, q, k and v of 960 x 576 0.7 us less than in
    # two passes, 2 x 1536 x 576 0.4 less.
    every = n * (2 if gated else 1) * chunks
    few = every <= _FEW_CHUNKS and chunks > 32
    if heuristics.dispatches_wait(info) and chunks > 32 and (few or (n < 16384 and every <= MOST_CHUNKS)):
        turns = 2 * heuristics.compute_units(info)
        split = whole_rows(chunks)
        if split is not None and (few or not gated):
            return FusedTile(128 if few else 256, *split, flat=True, own=True, direct=True, turns=0 if few else turns)
        # 2 x 5632 x 2048: two rows of each, four loads of every lane.
        lanes = max(32, 1 << (-(-chunks // 4) - 1).bit_length())
        if not few and lanes <= 256:
            return FusedTile(256, lanes, 2 if gated else 1, -(-chunks // lanes), flat=True, own=True, turns=turns)
    lanes = 128
    loads = -(-chunks // lanes)
    if few and loads <= 4:
        return FusedTile(256, lanes, 1, loads, flat=True, own=True)
    # Many short rows, as of a vocabulary, four a subgroup: 49152 x 576 in 19.0 instead of 21.3 us.
    if n >= 16384 and not gated and 32 < chunks <= 80:
        return FusedTile(256, 8, 1, -(-chunks // 8), flat=True, own=True, direct=True)
    # Rows of 256 chunks: two of them in one pass of 128 lanes 0.3 us less than one in two of 64 (2560 x 2048, halves);
    # with a gate four in one of 256 lanes 0.2 less than in one of 128 (2 x 5632).
    if chunks == 256 and n >= 2048:
        return FusedTile(256, 256 if gated else 128, 2, 1 if gated else 2, flat=True, own=True)
    return None
