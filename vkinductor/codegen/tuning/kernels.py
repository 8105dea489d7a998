"""Kernels that scheduling generates as families: reductions of rows, elementwise kernels, transposing ones.

No template and no operator stands for such a kernel: what Inductor fused is its problem. So a candidate is the same
scheduled nodes generated once more under another layout (``layouts``), launched alone on operands of its own
(``arguments``). The kernel as the heuristic lays it out is the reference.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from torch._inductor.utils import get_fused_kernel_name
from torch._inductor.virtualized import V

from vkinductor.runtime.deviceinfo import DeviceInfo
from vkinductor.runtime.errors import VulkanError

from .. import heuristics
from ..compat import setting, size_hint
from ..report import nbytes_moved
from ..row_access import row_access
from ..source import KernelText
from ..widening import moving
from . import layouts
from .arguments import Arguments, NotLaunchableError, arguments, program
from .family import Bucket, Family, Operation, Size
from .layouts import Layout
from .structure import structure

log = logging.getLogger(__name__)

# Kernels that move less are not measured: a launch takes as long as their work.
FEWEST_BYTES, FEWEST_BYTES_OF_ROWS = 1 << 20, 1 << 16
# Nor those whose operands take more than this, which would be made on the host.
MOST_BYTES = 2 << 30

_SOURCES = tuple(
    f"codegen/{name}.py"
    for name in (
        "columns", "heuristics", "kernel", "mixed_reductions", "ops", "precision", "reductions", "row_access",
        "row_sums", "sections", "source", "tiles", "two_passes", "vectorize", "widening", "tuning/arguments",
        "tuning/kernels", "tuning/layouts", "tuning/structure",
    )
)  # fmt: skip


class Unfit(Exception):
    """The kernel is none that is tuned; the message says why."""


@dataclass(frozen=True)
class Draft:
    """A kernel as generated: its text, and the tiles that are launched, 0 where elements of x are. ``error``: why
    there is none."""

    text: KernelText | None
    items: int = 0
    error: str = ""


@dataclass(eq=False)
class Problem:
    """One kernel of a graph. ``others``: layouts besides the heuristic's, the likely best first. ``draft``: generates
    the kernel in a layout; only while its graph is being generated. ``drafts``: by label, once they were asked for."""

    bucket: Bucket
    default: Layout
    others: list[Layout]
    arguments: Arguments
    nbytes: int
    draft: Callable[[Layout], Draft]
    drafts: dict[str, Draft] = field(default_factory=dict)

    def generate(self, first: Draft, most: int) -> None:
        """Draft what is to be measured: the kernel ``first`` and ``most`` others that are different ones."""
        self.drafts = {label(self.default): first}
        texts = {first.text}
        kept: list[Layout] = []
        for layout in self.others:
            if len(kept) == most:
                break
            found = self.draft(layout)
            if found.text is None or found.text not in texts:
                texts.add(found.text)
                self.drafts[label(layout)] = found
                kept.append(layout)
        self.others = kept


def label(layout: Layout) -> str:
    """A layout's name. The heuristic's forces nothing, and so is the heuristic's for other sizes, too."""
    return str(layout) or "heuristic"


class Generated:
    """A family of generated kernels; problems are ``Problem``. ``name``: as results are kept."""

    sources: tuple[str, ...] = (*_SOURCES, "templates")

    def __init__(self, name: str) -> None:
        self.name = name

    def bucket(self, problem: Problem) -> Bucket:
        return problem.bucket

    def candidates(self, info: DeviceInfo, problem: Problem) -> Sequence[Layout]:
        return [problem.default, *problem.others]

    def label(self, candidate: Layout) -> str:
        return label(candidate)

    def estimate(self, info: DeviceInfo, problem: Problem, candidate: Layout) -> float:
        return candidate.estimate

    def forced(self, candidate: Layout) -> AbstractContextManager[Any]:
        return heuristics.override(**candidate.settings)

    def operation(self, problem: Problem) -> Operation:
        of = problem.arguments

        def made(candidate: Layout) -> Any:
            found = problem.drafts[label(candidate)]
            if found.text is None:
                raise NotLaunchableError(found.error)
            return program(found.text, of, found.items or of.items)

        operands = of.memory[: of.operands]
        return Operation(None, operands, problem.nbytes, 0, None, None, made, of.results)


REDUCTION = Generated("reduction")
POINTWISE = Generated("pointwise")
TRANSPOSE = Generated("transpose")
GENERATED: tuple[Generated, ...] = (REDUCTION, POINTWISE, TRANSPOSE)


def settings(
    scheduling: Any, features: Any, choice: Callable[[Family, Any], Any], searching: bool, known: Any
) -> dict[str, Any]:
    """What ``heuristics.override`` takes for the kernel of ``features`` (Inductor's SIMDKernelFeatures), by what
    measurements say; empty where they say nothing.

    ``choice``: the tuner's; ``searching``: whether it measures; ``known``: results.
    """
    if not searching and not any(known.index(family) for family in GENERATED):
        return {}
    if setting("persistent") or setting("check_bounds") or heuristics.is_laid_out():
        return {}
    try:
        draft = functools.partial(_drafted, scheduling, features)
        kernel, first = draft(Layout({}))
        family, problem = _problem(kernel, first, features, known.device.info, lambda layout: _safely(draft, layout))
    except (Unfit, NotLaunchableError) as why:
        log.debug("a kernel is not tuned: %s", why)
        return {}
    except Exception:  # what is wrong with the kernel itself shows when it is generated
        log.warning("a kernel is not tuned", exc_info=True)
        return {}
    if searching and known.find(family, problem.bucket) is None:
        problem.generate(first, layouts.MOST[known.device.info.kind == "cpu"])
    chosen = choice(family, problem)
    return {} if chosen is None else chosen.settings


def _drafted(scheduling: Any, features: Any, layout: Layout) -> tuple[Any, Draft]:
    """The kernel of ``features`` in a layout, as code generation would write it; nothing is written."""
    schedule = features.node_schedule
    with heuristics.override(**layout.settings):
        sizes = (features.numel, features.reduction_numel)
        tiling, _ = scheduling.get_tiling_and_scores(schedule, *sizes, None)
        (kernel,) = scheduling.create_kernel_choices(features, [tiling], {"features": features})
        scheduling.codegen_node_schedule_with_kernel(schedule, kernel)
        with V.set_kernel_handler(kernel):
            text = kernel.text()
    return kernel, Draft(text, 0 if kernel.tile is None else kernel.tile.count)


def _safely(draft: Callable[[Layout], tuple[Any, Draft]], layout: Layout) -> Draft:
    try:
        return draft(layout)[1]
    except VulkanError as error:
        return Draft(None, error=str(error))
    except Exception as error:  # a layout that cannot be generated is a candidate that fails
        return Draft(None, error=f"{type(error).__name__}: {error}")


def _problem(
    kernel: Any, first: Draft, features: Any, info: DeviceInfo, draft: Callable[[Layout], Draft]
) -> tuple[Generated, Problem]:
    if kernel.atomic_add_found:
        raise Unfit("it adds with atomics, so that results differ from run to run")
    if kernel.reduces and (features.contains_op("sort") or features.contains_op("scan")):
        raise Unfit("it sorts or scans")
    assert first.text is not None
    of = arguments(kernel, first.text)
    nodes = features.scheduler_nodes()
    nbytes = sum(nbytes_moved(nodes, kernel.removed_buffers))
    if not (FEWEST_BYTES_OF_ROWS if kernel.reduces else FEWEST_BYTES) <= nbytes or of.nbytes > MOST_BYTES:
        raise Unfit("it moves too few bytes, or too many")
    family = REDUCTION if kernel.reduces else POINTWISE if kernel.tile is None else TRANSPOSE
    found = {REDUCTION: _rows, POINTWISE: _elements, TRANSPOSE: _tiles}[family](kernel, features, info)
    sizes = _sizes(kernel, features)
    dtype = str(max((o.dtype for o in of.memory), key=lambda dtype: _bytes_of(of, dtype))).removeprefix("torch.")
    name = get_fused_kernel_name(features.node_schedule, "original_aten").removeprefix("fused_")
    sums = f" sums={features.sums}x{features.turns}" if getattr(features, "sums", 0) else ""
    sums += f" together={features.together}" if getattr(features, "together", 1) > 1 else ""
    bucket = Bucket(f"{dtype} {name}{sums} {structure(nodes)}", sizes)

    default = Layout({}, min((layout.estimate for layout in found), default=1.0))
    return family, Problem(bucket, default, found, of, nbytes, draft)


def _bytes_of(of: Arguments, dtype: Any) -> int:
    return sum(o.size[0] * dtype.itemsize for o in of.memory if o.dtype == dtype)


def _sizes(kernel: Any, features: Any) -> tuple[Size, ...]:
    """Rows and their length; of other kernels the ranges of the node that has the most."""
    if kernel.reduces:
        named = {"rows": features.numel, "row": features.reduction_numel}
    else:
        ranges = max((node.get_ranges()[0] for node in features.scheduler_nodes()), key=len)
        named = {f"size{i}": n for i, n in enumerate(ranges)}
    return tuple(Size(name, size_hint(n), _static(n)) for name, n in named.items())


def _static(n: Any) -> bool:
    return isinstance(n, int) or bool(n.is_Integer)


def _rows(kernel: Any, features: Any, info: DeviceInfo) -> list[Layout]:
    nodes, rows, row = features.scheduler_nodes(), features.numel, features.reduction_numel
    sums, together = getattr(features, "sums", 0), getattr(features, "together", 1)
    access = dataclasses.replace(row_access(nodes, rows, row), sums=sums, together=together)
    loops = sum(section.loop for section in kernel.pending)
    facts = layouts.Rows(int(row) if _static(row) else 0, size_hint(row), size_hint(rows), loops, access)
    return layouts.rows(info, kernel.layout, facts)


def _elements(kernel: Any, features: Any, info: DeviceInfo) -> list[Layout]:
    sizes = moving(kernel, kernel.accesses.values())
    return layouts.elements(info, sizes, size_hint(features.numel), kernel.width)


def _tiles(kernel: Any, features: Any, info: DeviceInfo) -> list[Layout]:
    sizes = [access.dtype.itemsize for access in kernel.accesses.values()]
    return layouts.tiles(info, sizes, (kernel.tile.along, kernel.tile.across))
