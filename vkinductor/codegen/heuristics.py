"""How a kernel is laid out on the device: workgroup size, lanes a row, rows a workgroup.

These are starting points by device class, from the device's limits; tuning replaces them by measurement.
``override`` forces values, which is how tests reach every layout on any driver.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from vkinductor.runtime.deviceinfo import DeviceInfo

from . import loop_limit
from .alignment import WIDEST

# Invocations of all workgroups of kernels that run as one.
PROGRAM_WORKGROUP = 256

# A lane keeps at most this many row elements in registers (the array is fully unrolled).
MAX_ELEMENTS_IN_REGISTERS = 8

# A GPU has enough registers for more of them: for so many values a lane in all, of the rows that a kernel reads, and
# starts from so many elements.
MAX_ELEMENTS_OF_GPU, REGISTERS_FOR_ROWS, ELEMENTS_A_LANE = 32, 64, 16

# Bytes that an invocation of a GPU loads before it stores the first of what it makes of them.
EARLY_BYTES = 128

# Sums over columns are cut into parts until they have so many results, each of so many rows at least: with 16 rows of
# 4096 halves RMSNorm's gradient takes 57 us on an H200, with 32 it takes 64; LayerNorm's with 16 rows of 256 takes 29,
# with 8 it takes 31.
SUMS_OF_PARTS, FEWEST_ROWS_A_PART = 1 << 21, 16
# Rows of halves, no longer than LONGEST_ROW_OF_HALVES, that have columns summed beside them leave registers for more
# workgroups where a lane has HALVES_WITH_SUMS of them: LayerNorm's gradient of 32768 rows of 1024 bfloat16 takes 73 us
# on an H200 instead of 83, RMSNorm's 67 instead of 77, LayerNorm's of 16384 rows of 2048 halves 75 instead of 80; rows
# of 4096 gain nothing, nor do floats.
HALVES_WITH_SUMS, LONGEST_ROW_OF_HALVES = 8, 2048
# Few columns are shared out among so many workgroups.
FEWEST_WORKGROUPS_OF_COLUMNS = 64
# A kernel of rows sums columns as well where the elements are more than caches hold, and a row's fit beside their sums.
LONGEST_ROW_WITH_SUMS, FEWEST_WITH_SUMS = 8192, 1 << 22

# A sum that has one result is cut where it is longer, into parts of so many elements: an H200 takes 49 us for the
# losses of 16384 rows of 2048 floats where one workgroup sums them, 39 us where 16 do; of 32768 rows of 1024 64 and 39.
LONGEST_SINGLE_ROW, PART_OF_SINGLE_ROW = 8192, 1024

# A sum of one value a row is in parts of at most so many neighbouring rows, which a workgroup of the kernel that
# reduces them adds up: as many as leave no more parts than one workgroup sums, and of no more elements than it takes.
# An H200 takes 33.4 us for the losses of 32768 rows of 1024 floats so, and 37.9 with two kernels after the rows'.
MOST_ROWS_TOGETHER, ELEMENTS_TOGETHER = 8, 4096

# Rows that are reduced with their places are cut where they are longer than one workgroup is quick with, into parts of
# so many elements at least, as long as there are fewer workgroups of these than a large GPU runs at a time.
# Rules of thumb: no GPU has been timed with and without the cut yet.
LONGEST_ROW_WITH_PLACES, FEWEST_IN_PART, WORKGROUPS_OF_PARTS = 16384, 1024, 128

# Below this a kernel takes fewer elements an invocation: a large GPU runs a quarter of a million at a time.
FEWEST_INVOCATIONS = 1 << 15
# A CPU driver's cores take a workgroup each. Of Mesa 25's lavapipe the time of an elementwise kernel is mostly the
# invocations': a million elements in 5 ms instead of 15 and more with eight of them at a time.
FEWEST_INVOCATIONS_CPU = 1 << 11

# On a CPU driver a lane is one slot of a SIMD register and a workgroup barrier is a loop over all lanes:
# lanes are added only to shorten the serial sum, which also bounds its rounding error.
CPU_ELEMENTS_A_LANE = 64
# A program for few lanes serves rows up to here: past it the serial sum is slow, and off by 1e-3 at millions.
CPU_MOST_ELEMENTS_A_LANE = 1 << 14

# Elements that a workgroup sorts in a row kernel: each takes up to 20 of the 16384 bytes that any device has.
SORTED_ELEMENTS = 512

# Up to this length of a row counting the elements before each is cheaper than a sorting network: it has no barriers,
# which on a CPU driver count for more.
RANKED_ROW, RANKED_ROW_CPU = 32, 128


@dataclass(frozen=True)
class PointwiseLayout:
    """``workgroup`` invocations, one element each."""

    workgroup: int


@dataclass(frozen=True)
class ReductionLayout:
    """``lanes`` invocations share a row, ``rows`` rows share a workgroup.

    ``elements`` > 0: the row lives in registers, that many elements a lane (persistent reduction);
    0: each stage loops over the row again. ``chunk``: where the row is scanned, how many neighbouring elements a lane
    takes at a time. ``block``: where the row is sorted, its length rounded up to a power of two; ``ranked``: whether by
    counting for each element those before it. ``width``: neighbours that a lane takes at a time, where they can be
    loaded at once. ``batch``: elements that a loop over the row takes a pass, each ``lanes`` after the one before.
    ``columns``: whether neighbouring invocations have neighbouring rows, because that is how these lie in memory, and
    ``across``: how many rows an invocation has then. ``turns``: rows that a lane takes one after the other, because it
    sums columns over these.
    """

    lanes: int
    rows: int
    elements: int
    chunk: int = 1
    block: int = 0
    ranked: bool = False
    width: int = 1
    batch: int = 1
    columns: bool = False
    across: int = 1
    turns: int = 1

    @property
    def step(self) -> int:
        """Elements of a row that a lane takes at a time."""
        return self.width * (1 if self.elements else self.batch)

    @property
    def workgroup(self) -> int:
        """Invocations a workgroup."""
        return self.lanes * self.rows


_overrides: contextvars.ContextVar[dict[str, Any]] = contextvars.ContextVar("vkinductor_layout", default={})  # noqa: B039


@contextlib.contextmanager
def override(**values: Any) -> Iterator[None]:
    """Force a layout's numbers, ``workgroup``, ``tails``, ``tile`` (elements along and across; (): none), ``columns``,
    ``subgroups`` (whether rows are folded in them), ``reads_dominate``, ``device_exp2``, ``scan_limit`` and
    ``scan_block``, ``sort_block``, ``row_sort`` (the longest row), ``ranked_row``, ``convolution_products``,
    ``parts`` (of reductions that are cut), ``depthwise`` (its tile), ``fused_linears`` (whether linear layers share a
    kernel), ``single_row``, ``single_part``, ``early`` (bytes), ``sample_lanes``, ``sample_capacity``,
    ``attention_counts`` (whether a mask's blocks are counted), ``tables`` (whether they are kept), ``row_with_places``,
    ``fewest_in_part`` or ``rows_together`` for kernels generated inside."""
    token = _overrides.set({**_overrides.get(), **values})
    try:
        yield
    finally:
        _overrides.reset(token)


def forced(name: str) -> Any:
    """The value that ``override`` forces for ``name``, or None."""
    return _overrides.get().get(name)


# What ``override`` takes of the layouts that tuning measures.
_LAYOUTS = frozenset(("lanes", "rows", "elements", "width", "batch", "across", "workgroup", "tile"))


def is_laid_out() -> bool:
    """Whether ``override`` forces a layout of generated kernels."""
    return not _LAYOUTS.isdisjoint(_overrides.get())


def program_workgroup(info: DeviceInfo) -> int | None:
    """Invocations of every workgroup of a graph whose kernels are to run as one (option ``persistent``); None: any."""
    from .compat import setting

    if not setting("persistent"):
        return None
    return int(_overrides.get().get("workgroup", min(PROGRAM_WORKGROUP, _max_workgroup(info))))


def dispatches_wait(info: DeviceInfo) -> bool:
    """Whether the dispatches of a graph are to wait for each other without barriers (option ``chained``): workgroups of
    the next one are there before the last one has ended, and each has to be counted. Only what is recorded does."""
    from torch._inductor import config

    from vkinductor.runtime.replay.chained import FEWEST_STEPS, by_default

    from .compat import setting

    if setting("persistent"):
        return False
    form = _overrides.get().get("form", setting("chained") if config.graph_partition else False)
    return form == "chained" or (form == "auto" and by_default(info) and products() >= FEWEST_STEPS)


def products() -> int:
    """Linear layers and other matrix products of the graph being lowered."""
    from torch._inductor.virtualized import V

    graph: Any = V.graph
    if not hasattr(graph, "module"):  # none is
        return 0
    if not hasattr(graph, "vkinductor_products"):
        names = (getattr(node.target, "_opname", "") for node in graph.module.graph.nodes)
        graph.vkinductor_products = sum(name in _PRODUCTS for name in names)
    return int(graph.vkinductor_products)


_PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "fused_linear", "linear_argmax", "quantized_linear"))

# Multiprocessors of the device on which layouts were measured.
H200_UNITS = 132


def compute_units(info: DeviceInfo) -> int:
    """Workgroups that run at a time: Vulkan does not tell how many a device has, a class of devices has about these."""
    return {"discrete": H200_UNITS, "integrated": 16}.get(info.kind, 32)


def device_reads_dominate() -> bool:
    """Whether reading memory again costs more than computing again: true of a GPU."""
    from vkinductor.runtime import context

    return bool(_overrides.get().get("reads_dominate", context.get().info.kind != "cpu"))


def longest_row_in_registers() -> int:
    """Elements of a row of one operand that a workgroup keeps in registers; less where the layout is forced."""
    from vkinductor.runtime import context

    info, forced = context.get().info, _overrides.get()
    most = MAX_ELEMENTS_IN_REGISTERS if info.kind == "cpu" else MAX_ELEMENTS_OF_GPU
    lanes = min(256, _max_workgroup(info)) if info.kind == "cpu" else _max_workgroup(info)
    return int(forced.get("lanes", lanes)) * int(forced.get("elements", most))


def early_bytes(info: DeviceInfo) -> int:
    """Bytes that an invocation loads before its first store; 0: each step loads and stores (early_loads.py)."""
    return int(_overrides.get().get("early", 0 if info.kind == "cpu" else EARLY_BYTES))


def row_parts(row: int, single: bool, parts: int) -> int:
    """Into how many parts rows of ``row`` elements are cut, of which Inductor would make ``parts``; 1: into none.

    ``single``: there is no other row.
    """
    longest = longest_row_in_registers()
    if not single:
        return 1 if row <= longest else parts
    if row <= min(longest, _overrides.get().get("single_row", LONGEST_SINGLE_ROW)):
        return 1
    part = int(_overrides.get().get("single_part", PART_OF_SINGLE_ROW))
    return row // part if row % part == 0 and row // part <= part else parts


def rows_together(rows: int, columns: int) -> int:
    """How many of ``rows`` neighbouring rows a workgroup takes that adds up what they come to; 1: it does not."""
    single = int(_overrides.get().get("single_row", LONGEST_SINGLE_ROW))
    most, together = min(MOST_ROWS_TOGETHER, ELEMENTS_TOGETHER // columns), 1
    while rows // together > single and 2 * together <= most and rows % (2 * together) == 0:
        together *= 2
    return int(_overrides.get().get("rows_together", together if device_reads_dominate() else 1))


def read_at_once(row: Any) -> bool:
    """Whether a loop over the only row of ``row`` elements reads all that its reductions need."""
    return isinstance(row, (int, sympy.Integer)) and int(row) <= LONGEST_SINGLE_ROW and device_reads_dominate()


def power_of_two_at_least(n: int) -> int:
    """The least power of two that is not less than ``n``."""
    return 1 << max(0, n - 1).bit_length()


def _max_workgroup(info: DeviceInfo) -> int:
    limit = min(info.limits.max_workgroup_invocations, info.limits.max_workgroup_size[0])
    return 1 << (limit.bit_length() - 1)


def pointwise(info: DeviceInfo) -> PointwiseLayout:
    """Layout of an elementwise kernel on ``info``."""
    workgroup = _overrides.get().get("workgroup", min(256, _max_workgroup(info)))
    return PointwiseLayout(workgroup)


def pointwise_widths(info: DeviceInfo, narrowest: int, widest: int, numel_hint: int) -> list[int]:
    """Elements an invocation, best first, of an elementwise kernel; they have ``narrowest`` to ``widest`` bytes.

    Sixteen bytes of the narrowest, but no more than two loads of the widest; fewer where that leaves a GPU idle.
    """
    width = _overrides.get().get("width", _full_width(narrowest, widest))
    fewest = FEWEST_INVOCATIONS_CPU if info.kind == "cpu" else FEWEST_INVOCATIONS
    while "width" not in _overrides.get() and width > 1 and numel_hint // width < fewest:
        width //= 2
    return [w for w in (16, 8, 4, 2) if w <= width]


def _full_width(narrowest: int, widest: int) -> int:
    return max(1, min(2 * WIDEST // widest, WIDEST // narrowest))


def tile_shapes(info: DeviceInfo, narrowest: int) -> list[tuple[int, int]]:
    """Shapes (elements along what is written, and across), best first, of the tiles of transposing kernels whose
    narrowest elements have so many bytes. A CPU driver has caches."""
    if "tile" in _overrides.get():
        tile = _overrides.get()["tile"]
        return [tile] if tile else []
    if info.kind == "cpu":
        return []
    return [(64, 64), *([(96, 64)] if narrowest <= 2 else []), (32, 64), (32, 32)]


def convolution_products(info: DeviceInfo) -> bool:
    """Whether convolutions become matrix products where they can: the CPU drivers' own tile is as good."""
    return bool(_overrides.get().get("convolution_products", info.kind != "cpu"))


def sums_with_rows(rows: int, columns: int) -> bool:
    """Whether a kernel that reduces ``rows`` rows may sum ``columns`` columns, too: not where caches hold all."""
    return columns <= LONGEST_ROW_WITH_SUMS and rows * columns >= _fewest_with_sums()


def column_parts(rows: int, columns: int) -> int:
    """Into how many parts of as many rows a sum over columns is cut on a GPU; 1: it is not."""
    most, parts = _overrides.get().get("sums_of_parts", SUMS_OF_PARTS), 1
    if rows * columns < _fewest_with_sums():
        return 1
    while 2 * parts * columns <= most and rows % (2 * parts) == 0 and rows // (2 * parts) >= FEWEST_ROWS_A_PART:
        parts *= 2
    return parts


def parts_with_places(length: int, rows: int) -> int:
    """Into how many parts ``rows`` rows of so many elements are cut that are reduced with their places; 1: into none.

    Parts are alike, and begin where wide loads may, if there is such a number near the best.
    """
    if not device_reads_dominate() or length <= _overrides.get().get("row_with_places", LONGEST_ROW_WITH_PLACES):
        return 1
    most = min(length // _overrides.get().get("fewest_in_part", FEWEST_IN_PART), WORKGROUPS_OF_PARTS // rows)
    if most < 4:
        return 1
    for step in (8, 1):
        for parts in range(most, most // 2, -1):
            if length % (parts * step) == 0:
                return parts
    return most


def _fewest_with_sums() -> int:
    return int(_overrides.get().get("fewest_with_sums", FEWEST_WITH_SUMS))


def device_exp2(info: DeviceInfo) -> bool:
    """Whether GLSL's exp2 keeps to the specification: lavapipe's is an approximation."""
    return bool(_overrides.get().get("device_exp2", info.kind != "cpu"))


def tails(numel_hint: int) -> bool:
    """Whether a kernel may have a second body for the elements that do not fill a wide access."""
    return bool(_overrides.get().get("tails", numel_hint >= 1 << 20))


@dataclass(frozen=True)
class RowAccess:
    """What a reduction kernel moves of each row: bytes of the narrowest and the widest element among the contiguous
    accesses, and how many of these read the whole row. ``width``: neighbours that lengths and strides allow.
    ``columns``: elements with the same place in neighbouring rows are neighbours in memory, ``across`` of them so that
    one access may take them. ``sums``: over columns, which a lane keeps beside the rows. ``writes``: accesses that
    write the whole row. ``rounded``: one of these writes bfloat16, which takes integer arithmetic to round to.
    ``together``: rows whose values are summed, which are a workgroup's."""

    narrowest: int = 4
    widest: int = 4
    reads: int = 1
    width: int = 1
    columns: bool = False
    across: int = 1
    sums: int = 0
    writes: int = 1
    rounded: bool = False
    together: int = 1


def reduction(
    info: DeviceInfo,
    row: int | None,
    row_hint: int,
    rows_hint: int,
    passes_within: int = 0,
    access: RowAccess = RowAccess(),
) -> ReductionLayout:
    """Layout of a reduction over rows of ``row`` elements (None when symbolic; then ``row_hint``).

    ``passes_within``: of loops inside the expressions of an element, where the device limits them (loop_limit.py).
    """
    forced = _overrides.get()
    largest = _max_workgroup(info)
    workgroup = min(256, largest)
    width = min(forced.get("width", 16), access.width)
    width = min(width, forced.get("width", _full_width(access.narrowest, access.widest)))
    kept, batch = MAX_ELEMENTS_IN_REGISTERS, forced.get("batch", 1 if info.kind == "cpu" else 8)
    columns = bool(forced.get("columns", access.columns and info.kind != "cpu"))
    across = forced.get("across", min(4, access.across) if info.kind != "cpu" else 1) if columns else 1
    if columns:
        # Neighbouring rows of 128 bytes or more, of 32 where there are few; lanes until each has eight elements, or
        # more to fill the device.
        wide_rows = 32 if across > 1 else max(32, min(64, 128 // access.narrowest))
        few = 0 if "across" in forced else FEWEST_WORKGROUPS_OF_COLUMNS
        while wide_rows > 8 and rows_hint < few * wide_rows * across:
            wide_rows, across = (wide_rows, across // 2) if across > 1 else (wide_rows // 2, 1)
        most = min(512, largest) // wide_rows
        lanes = max(1, min(most, power_of_two_at_least(row_hint) // 8))
        while lanes < min(most, row_hint) and lanes * (rows_hint // across) < FEWEST_INVOCATIONS:
            lanes *= 2
        workgroup = wide_rows * lanes
    elif info.kind == "cpu":
        lanes = power_of_two_at_least(-(-row_hint // CPU_ELEMENTS_A_LANE))
        workgroup = min(64, workgroup)
    elif row_hint <= 32:
        lanes = power_of_two_at_least(-(-row_hint // width))
    else:
        kept = max(kept, min(MAX_ELEMENTS_OF_GPU, REGISTERS_FOR_ROWS // max(1, access.reads)))
        kept = min(kept, ELEMENTS_A_LANE) if access.sums else kept
        # Smaller workgroups wait less at their barriers: LayerNorm of 32768 rows of 1024 halves takes 33.2 us on an
        # H200 instead of 34.1, of bfloat16 35.0 instead of 37.5, and 33.9 where a lane has all that registers hold.
        halves = access.sums > 0 and access.widest <= 2 and row_hint <= LONGEST_ROW_OF_HALVES
        workgroup = min(128, largest) if row is not None and (not access.sums or halves) else workgroup
        each = kept if access.rounded and access.reads == access.writes == 1 and not access.sums else ELEMENTS_A_LANE
        each = HALVES_WITH_SUMS if halves else each
        # Few lanes a row where rows' values are summed: losses of 32768 rows of 1024 halves take 20.2 us on an H200
        # instead of 22.0 with 64 lanes, of floats 33.4 instead of 33.8.
        each = kept if access.together > 1 else each
        # Short rows have two loads a lane: LayerNorm of 256 halves then takes 17.4 us on an H200 instead of 18.4.
        lanes = min(32, power_of_two_at_least(-(-row_hint // (2 * width))))
        lanes = max(lanes, power_of_two_at_least(-(-row_hint // each)))
        if access.writes > 1 and not access.sums and row_hint <= 256 * width:
            # Loads of one step never wait for stores of another: 129.8 us instead of 132.6 for 32768 rows of 1024
            # floats on an H200 (RMSNorm with a residual).
            lanes = max(lanes, power_of_two_at_least(-(-row_hint // width)))
        # Workgroups of 512 and more leave room for one or two others, and nothing to do while they wait for each other:
        # half the speed on an H200 (2048 x 8192 and 512 x 16384, float16).
        lanes = min(lanes, max(256, power_of_two_at_least(-(-row_hint // kept))))
        # Few long rows must not leave the device idle.
        while lanes < largest and lanes * rows_hint < 2 * FEWEST_INVOCATIONS and 2 * lanes * width <= row_hint:
            lanes *= 2
        lanes = min(lanes, largest)
        if lanes * kept < row_hint:
            lanes = min(512, largest)
    lanes = min(lanes, workgroup) if info.kind == "cpu" else lanes
    lanes = loop_limit.lanes(info, lanes, largest, row_hint, passes_within)
    lanes = forced.get("lanes", lanes)
    common = program_workgroup(info)
    if common is not None:
        lanes, workgroup = min(lanes, common), common
    lanes = min(lanes, largest // access.together) if access.together > 1 else lanes
    workgroup = max(workgroup, lanes)
    rows = forced.get("rows", max(1, workgroup // lanes))
    if "rows" not in forced and common is None:
        while rows > 1 and rows // 2 >= rows_hint:
            rows //= 2
    if access.together > 1:
        rows, across = max(1, min(rows, largest // lanes) // access.together) * access.together, 1
    elements = 0
    if row is not None:
        elements = -(-row // (lanes * width)) * width
        elements = elements if access.sums or (elements <= max(kept, width) and across == 1) else 0
    elements = forced.get("elements", elements)
    elements = -(-elements // width) * width
    if row is None or lanes * elements < row:
        elements = 0  # a forced layout that does not hold the row
    batch = 1 if width > 1 else batch
    return ReductionLayout(lanes, rows, elements, width=width, batch=batch, columns=columns, across=across)


def fold_subgroup(info: DeviceInfo, layout: ReductionLayout, registers: Sequence[str]) -> int:
    """Invocations a subgroup where the lanes of a row are folded by exchange within subgroups; 0 where through shared
    memory alone. ``registers``: the GLSL types of what is folded."""
    limits, lanes = info.limits, layout.lanes
    size = limits.subgroup_size
    wanted = _overrides.get().get("subgroups", info.kind != "cpu")
    fixed = limits.subgroup_size_min == size == limits.subgroup_size_max
    if not (wanted and fixed and info.features.subgroup_shuffle and lanes > 1) or layout.columns or layout.block:
        return 0
    if layout.chunk > 1 or layout.workgroup % size or lanes > size * size:
        return 0
    return 0 if "double" in registers else size


def longest_row(info: DeviceInfo, layout: ReductionLayout) -> int | None:
    """The longest row that ``layout`` is good for, where it varies; None where another would not be better."""
    few = info.kind == "cpu" and layout.lanes < min(64, _max_workgroup(info))
    return layout.lanes * CPU_MOST_ELEMENTS_A_LANE if few else None


def scan(info: DeviceInfo, row: int | None, row_hint: int, rows_hint: int) -> ReductionLayout:
    """Layout of a kernel that scans its rows, arguments as of ``reduction``: looped, with chunks."""
    forced = _overrides.get()
    largest = _max_workgroup(info)
    workgroup = min(64 if info.kind == "cpu" else 256, largest)
    # A scan by many lanes does log2(lanes) times the work, which a device with idle lanes gives away.
    lanes = chunk = 1
    if info.kind != "cpu":
        chunk = min(4, power_of_two_at_least(-(-row_hint // 16)))
        lanes = min(power_of_two_at_least(-(-row_hint // chunk)), 1024 if row_hint > 16384 else workgroup, largest)
    lanes, chunk = forced.get("lanes", lanes), forced.get("chunk", chunk)
    workgroup = max(workgroup, lanes)
    rows = forced.get("rows", max(1, workgroup // lanes))
    while "rows" not in forced and rows > 1 and rows // 2 >= rows_hint:
        rows //= 2
    return ReductionLayout(lanes, rows, 0, chunk)


def scan_blocks(info: DeviceInfo, rows_hint: int) -> tuple[int, int]:
    """(longest row that is scanned whole, length of the blocks that longer ones are cut into)."""
    forced = _overrides.get()
    if info.kind == "cpu":
        # Far below the number of iterations at which lavapipe ends loops (loop_limit.py): several fit into a kernel.
        limit, block = 8192, 1024
    else:
        limit, block = (16384, 4096) if rows_hint < 256 else (1 << 30, 1 << 20)
    return forced.get("scan_limit", limit), forced.get("scan_block", block)


def longest_row_sort() -> int:
    """The longest row that is sorted inside a row kernel: a lane keeps its elements in registers."""
    return int(_overrides.get().get("row_sort", 512))


def row_sort(info: DeviceInfo, row: int, rows_hint: int) -> ReductionLayout:
    """Layout of a kernel that sorts its rows of ``row`` elements: persistent."""
    forced = _overrides.get()
    largest = _max_workgroup(info)
    block = power_of_two_at_least(max(2, row))
    fewest = power_of_two_at_least(-(-row // MAX_ELEMENTS_IN_REGISTERS))
    lanes, workgroup, longest = block // 2, min(256, largest), RANKED_ROW
    if info.kind == "cpu":
        lanes, workgroup, longest = fewest, min(64, largest), RANKED_ROW_CPU
    lanes = max(fewest, forced.get("lanes", min(lanes, workgroup)))
    rows = forced.get("rows", max(1, min(workgroup // lanes, SORTED_ELEMENTS // block)))
    while "rows" not in forced and rows > 1 and rows // 2 >= rows_hint:
        rows //= 2
    ranked = row <= forced.get("ranked_row", longest)
    return ReductionLayout(lanes, rows, -(-row // lanes), block=block, ranked=ranked)


def largest_sort_block(info: DeviceInfo) -> int:
    """Elements of a row that one workgroup sorts in shared memory, a power of two. A device has 16 KiB at least."""
    forced = _overrides.get()
    return int(forced.get("sort_block", 1024))


def sort_block(info: DeviceInfo, block: int, element: int, blocks_hint: int) -> tuple[int, int]:
    """(lanes a block, blocks a workgroup) to sort blocks of ``block`` elements, ``element`` bytes each."""
    workgroup = min(64 if info.kind == "cpu" else 256, _max_workgroup(info))
    lanes = max(1, min(block // 2, workgroup))
    if info.kind == "cpu":
        lanes = max(1, min(lanes, block // 16))  # a barrier costs more than a few comparisons
    blocks = max(1, min(workgroup // lanes, 16384 // (block * element)))
    while blocks > 1 and blocks // 2 >= blocks_hint:
        blocks //= 2
    return lanes, blocks
