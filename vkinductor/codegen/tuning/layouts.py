"""Which layouts of a generated kernel are worth trying: tables by device class, the limits, and a simple model.

A candidate is what ``heuristics.override`` takes. What it makes of the kernel is decided where the kernel is generated
(a width that its accesses do not allow is not taken), so two candidates may be one kernel: ``kernels`` drops those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import log2, prod
from typing import Any

from vkinductor.runtime.deviceinfo import DeviceInfo

from ..alignment import WIDEST
from ..heuristics import ReductionLayout, RowAccess, compute_units, power_of_two_at_least


@dataclass(frozen=True)
class Layout:
    """Numbers that ``heuristics.override`` takes, and a rough time, comparable among those of a kernel."""

    settings: dict[str, Any]
    estimate: float = field(default=1.0, compare=False)

    def __str__(self) -> str:
        return " ".join(f"{name}={_shown(value)}" for name, value in self.settings.items())


def _shown(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True)
class RowTable:
    """Kernels that reduce rows. ``lanes`` a row; ``workgroups``: invocations; ``widths``: of neighbours at a time,
    relative to the heuristic's; ``registers``: the most values of a row's operands that a lane keeps; ``across``,
    ``near``: rows an invocation and side by side, where neighbouring rows lie side by side in memory."""

    lanes: tuple[int, ...]
    workgroups: tuple[int, ...]
    widths: tuple[float, ...]
    registers: int
    across: tuple[int, ...]
    near: tuple[int, ...]


@dataclass(frozen=True)
class ElementTable:
    """Elementwise kernels. ``workgroups``: invocations; ``widths``: elements an invocation; ``widest``: the most bytes
    of one operand that it takes; ``tiles``: elements along and across, where what is read lies the other way."""

    workgroups: tuple[int, ...]
    widths: tuple[int, ...]
    widest: int
    tiles: tuple[tuple[int, int], ...]


# By class of device: whether its cores are those of a CPU.
ROWS = {
    False: RowTable(
        lanes=(4, 8, 16, 32, 64, 128, 256, 512, 1024),
        workgroups=(64, 128, 256, 512, 1024),
        widths=(1, 0.5, 2),
        registers=160,
        across=(1, 2, 4),
        near=(8, 16, 32, 64),
    ),
    True: RowTable(
        lanes=(1, 2, 4, 8, 16, 32, 64), workgroups=(16, 64), widths=(1,), registers=8, across=(1,), near=(8, 32)
    ),
}
ELEMENTS = {
    False: ElementTable(
        workgroups=(64, 128, 256, 512),
        widths=(1, 2, 4, 8, 16),
        widest=4 * WIDEST,
        tiles=((64, 64), (96, 64), (32, 64), (64, 32), (32, 32), (128, 32), (32, 128), (128, 64), (64, 128), (16, 64)),
    ),
    True: ElementTable(workgroups=(64, 256), widths=(1, 4, 8, 16), widest=4 * WIDEST, tiles=((32, 32),)),
}
# Of a kernel, those with the best estimates.
MOST = {False: 24, True: 10}

# A unit's registers and invocations, and what an invocation needs beside its elements (NVIDIA's since Volta).
_REGISTERS, _INVOCATIONS, _OTHER_REGISTERS = 65536, 2048, 24
# Bytes that have to be on their way so that memory is never idle: 4.8 TB/s for 0.6 us on an H200.
_IN_FLIGHT = 3 << 20
# What a factor of two between a layout and the heuristic's counts for.
_FAR = 0.03
# What walking a row once more costs, of reading it once: most of it is in a cache.
_AGAIN = 0.4


@dataclass(frozen=True)
class Rows:
    """What a kernel of rows is: ``row`` elements (0 where that varies), ``row_hint`` and ``rows_hint`` likely ones,
    ``loops`` over a row, and how it reads (heuristics.py)."""

    row: int
    row_hint: int
    rows_hint: int
    loops: int
    access: RowAccess


def rows(info: DeviceInfo, layout: ReductionLayout, facts: Rows) -> list[Layout]:
    """Layouts of a kernel of rows instead of ``layout``, the likely best first."""
    table, largest = ROWS[info.kind == "cpu"], _largest(info)
    made = _columns(table, facts) if layout.columns else _rows(table, layout, facts)
    fitting = {}
    for settings in made:
        workgroup = settings["lanes"] * settings["rows"]
        if workgroup <= largest and workgroup in table.workgroups:
            # Of what the model takes for alike, what is near to the heuristic's first.
            factors = (settings["lanes"] / layout.lanes, workgroup / layout.workgroup)
            wider = 1.0 if layout.columns else settings["width"] / layout.width
            far = sum(abs(log2(factor)) for factor in (*factors, wider))
            found = Layout(settings, _estimate(info, facts, settings) * (1 + _FAR * far))
            fitting[str(found)] = found
    return sorted(fitting.values(), key=lambda found: found.estimate)


def _rows(table: RowTable, layout: ReductionLayout, facts: Rows) -> Iterator[dict[str, Any]]:
    access = facts.access
    for factor in table.widths:
        width = int(layout.width * factor)
        if width < 1 or width > access.width or width * access.widest > 2 * WIDEST:
            continue
        for lanes in table.lanes:
            if lanes > power_of_two_at_least(-(-facts.row_hint // width)):
                break
            for workgroup in table.workgroups:
                rows = workgroup // lanes
                if not 0 < rows <= power_of_two_at_least(facts.rows_hint) or rows % access.together:
                    continue
                for elements in _kept(table, facts, lanes, width):
                    yield {"lanes": lanes, "rows": rows, "elements": elements, "width": width}


def _kept(table: RowTable, facts: Rows, lanes: int, width: int) -> Iterator[int]:
    """Elements of a row that a lane may keep in registers; 0: none, and loops."""
    elements = -(-facts.row // (lanes * width)) * width
    if facts.row and elements * (facts.access.reads + facts.access.sums) <= table.registers:
        yield elements
    # Sums over columns are kept beside the row (mixed_reductions.py).
    if not facts.access.sums and elements != width:
        yield 0


def _columns(table: RowTable, facts: Rows) -> Iterator[dict[str, Any]]:
    for across in table.across:
        if facts.access.across % across:
            continue
        for near in table.near:
            for workgroup in table.workgroups:
                lanes = workgroup // near
                if 0 < lanes <= power_of_two_at_least(facts.row_hint):
                    yield {"lanes": lanes, "rows": near, "across": across}


def _estimate(info: DeviceInfo, facts: Rows, settings: dict[str, Any]) -> float:
    """Of a GPU how often the bytes have to be moved, over how busy memory is with those on their way. On a CPU the
    lanes that wait for each other."""
    lanes, width = settings["lanes"], settings.get("width", 1)
    across, elements = settings.get("across", 1), settings.get("elements", 0)
    access, rows = facts.access, -(-facts.rows_hint // across)
    if info.kind == "cpu":
        return 1.0 + lanes / max(1, facts.row_hint) + (0 if elements else 0.2)
    taken = elements or min(16, max(width, -(-facts.row_hint // lanes)))
    values = taken * (access.reads + access.sums) * across
    units = compute_units(info)
    resident = units * min(_INVOCATIONS, _REGISTERS // (_OTHER_REGISTERS + values))
    moving = min(rows * lanes, resident) * (taken if elements else width) * access.narrowest * access.reads * across
    passes = 1.0 if elements else 1.0 + _AGAIN * (facts.loops - 1)
    idle = lanes * width * -(-facts.row_hint // (lanes * width)) / facts.row_hint
    # A workgroup of many lanes has nothing to do while they wait for each other.
    waits = 1.0 + 0.05 * max(0, lanes * settings["rows"] // 256 - 1)
    return passes * idle * waits / min(1.0, moving / _IN_FLIGHT)


def elements(info: DeviceInfo, nbytes: Iterable[int], numel_hint: int, width: int) -> list[Layout]:
    """Layouts of an elementwise kernel whose accesses have elements of so many ``nbytes``, near that of ``width``
    first."""
    table, sizes = ELEMENTS[info.kind == "cpu"], list(nbytes)
    found = []
    for each in table.widths:
        if each > 1 and each * max(sizes, default=4) > table.widest:
            continue
        for workgroup in table.workgroups:
            if workgroup <= _largest(info) and each * workgroup <= max(numel_hint, table.workgroups[0]):
                far = max(each, width) / min(each, width)
                found.append(Layout({"width": each, "workgroup": workgroup}, 1.0 + 0.1 * far))
    return sorted(found, key=lambda layout: layout.estimate)


def tiles(info: DeviceInfo, nbytes: Iterable[int], sizes: tuple[int, int]) -> list[Layout]:
    """Layouts of a kernel that reads across what it writes, of ``sizes`` elements along and across: tiles through
    shared memory, and none."""
    table, widest = ELEMENTS[info.kind == "cpu"], max(nbytes, default=4)
    found = [Layout({"tile": (), "workgroup": 256}, 2.0)]
    for tile in table.tiles:
        padded = prod(-(-n // t) * t for n, t in zip(sizes, tile, strict=True)) / prod(sizes)
        if padded > 1.5 or 2 * prod(tile) * widest > info.limits.max_shared_memory:
            continue
        for workgroup in table.workgroups:
            # Sixteen bytes an invocation at least, and no more than sixteen times that.
            if workgroup <= _largest(info) and 1 <= prod(tile) * widest / (workgroup * WIDEST) <= 16:
                found.append(Layout({"tile": tile, "workgroup": workgroup}, padded + 0.1 * abs(workgroup / 256 - 1)))
    return sorted(found, key=lambda layout: layout.estimate)


def _largest(info: DeviceInfo) -> int:
    return min(info.limits.max_workgroup_invocations, info.limits.max_workgroup_size[0])
