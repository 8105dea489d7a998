"""What one graph became: its kernels with the operators in each, the memory they touch, their arithmetic, and what is
left to the CPU.

Filled in while code is generated, when somebody asked for it (the setting ``vulkan.report`` names a `Report` of
`device.registry`); reading and printing it is `inspection`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from . import fallbacks
from .compat import setting, size_hint
from .passes import MATCHES, Match

# Operators that move or make values and compute none.
_MOVES_TEXT = """
    alias arange as_strided cat clone constant_pad_nd contiguous convert_element_type copy copy_ detach diagonal
    device_put embedding empty empty_like empty_strided expand fill flip full full_like gather getitem index
    index_select inductor_lookup_seed inductor_seed inductor_seeds iota lift_fresh_copy new_empty new_full new_zeros
    ones permute repeat reshape roll scalar_tensor select slice split squeeze squeeze_copy t transpose unbind
    unsqueeze view _to_copy _unsafe_index _unsafe_view _assert_scalar sym_size zeros
"""
_MOVES = frozenset(_MOVES_TEXT.split())


@dataclass(frozen=True)
class KernelReport:
    """One launch of a kernel. Sizes that vary count with a likely value.

    ``operators``: those fused, in the graph's order; ``where``: the user's source lines they come from. ``nbytes_read``
    and ``nbytes_written``: each buffer once. ``product_flops``: of matrix products and convolutions;
    ``elementwise_flops``: one for each element that another operator reads or makes, whichever is more.
    """

    name: str
    operators: tuple[str, ...]
    where: tuple[str, ...]
    nbytes_read: int
    nbytes_written: int
    product_flops: int
    elementwise_flops: int
    glsl: str


@dataclass(frozen=True)
class FallbackReport:
    """An operator that is none of the kernels. ``certain``: it runs on the CPU; otherwise a kernel in Python runs, or
    only the call can tell. ``where``: the user's source line."""

    operator: str
    reason: str
    where: str
    certain: bool


@dataclass
class PhaseReport:
    """One compiled graph: "inference", or the "forward" or "backward" of one that is trained.

    ``matches``: the patterns that the graph passes found, those among them that they left as they were.
    """

    phase: str
    kernels: list[KernelReport] = field(default_factory=list)
    fallbacks: list[FallbackReport] = field(default_factory=list)
    matches: list[Match] = field(default_factory=list)


@dataclass
class Report:
    """All that Inductor compiled for one graph of Dynamo's."""

    phases: dict[str, PhaseReport] = field(default_factory=dict)

    def phase(self, name: str) -> PhaseReport:
        """That part, begun when there is none yet."""
        return self.phases.setdefault(name, PhaseReport(name))


def _current() -> PhaseReport | None:
    from torch._inductor.virtualized import V

    from vkinductor.device.registry import registry

    number = setting("report")
    report = registry.reports.get(number) if number else None
    if report is None:
        return None
    phase = report.phase(V.graph.get_training_phase())
    meta: Any = V.graph.module.meta
    found = meta.get(MATCHES, ())
    phase.matches += [match for match in found if match not in phase.matches]
    return phase


def note_kernel(name: str, definition: str, nodes: Any, kernel: Any) -> None:
    """Note a launch of the kernel that the expression ``definition`` defines (see ``KernelText.python``)."""
    report = _current()
    if report is not None:
        report.kernels.append(_kernel(name, definition, nodes, kernel.removed_buffers))


def note_extern(node: Any) -> None:
    """Note an operator that is left to torch's own kernels."""
    report = _current()
    if report is None:
        return
    why = fallbacks.certain(node)
    name = str(getattr(node, "op_overload", None) or getattr(node, "python_kernel_name", None) or type(node).__name__)
    reason = why or "a kernel in Python of the device, or torch's own, decides when it is called"
    report.fallbacks.append(FallbackReport(name, reason, fallbacks.node_position(node), why is not None))


def _kernel(name: str, definition: str, nodes: Any, removed: Any) -> KernelReport:
    scope: dict[str, Any] = {"KERNEL_NAME": name, "vulkan_kernel": lambda name, glsl, **rest: glsl}
    origins = sorted({origin for node in nodes for origin in origins_of(node)}, key=_order())
    calls = [node for node in origins if node.op == "call_function"]
    read, written = nbytes_moved(nodes, removed)
    products = {node: _product_flops(node) for node in calls}
    return KernelReport(
        name,
        tuple(str(node.target) for node in calls),
        tuple(dict.fromkeys(filter(None, (fallbacks.position([node]) for node in calls)))),
        read,
        written,
        sum(products.values()),
        sum(_elements(node) for node in calls if not products[node]),
        eval(definition, scope).lstrip("\n"),
    )


def origins_of(node: Any) -> set[Any]:
    """The FX nodes that a scheduler node computes.

    Those of a template hold what its operands were made of when it was lowered; these are other kernels' by now.
    """
    from torch._inductor.virtualized import V

    ir_node = getattr(node, "node", None)
    origins = set(getattr(ir_node, "origins", None) or ())
    if ir_node is not None and node.is_template():
        for operand in ir_node.inputs:
            buffer = V.graph.try_get_buffer(operand.get_name())
            origins -= set(getattr(buffer, "origins", None) or ())
    return origins


def _order() -> Any:
    from torch._inductor.virtualized import V

    positions = {node: i for i, node in enumerate(V.graph.graph.nodes)}
    return lambda node: positions.get(node, -1)


def nbytes_moved(nodes: Any, removed: Any) -> tuple[int, int]:
    """(bytes read, bytes written) by a kernel of ``nodes``, each buffer once; ``removed``: buffers that it keeps."""
    from torch._inductor.virtualized import V

    read, written = _buffers(nodes)
    kept = V.graph.removed_buffers | removed
    return sum(read.values()), sum(nbytes for buffer, nbytes in written.items() if buffer not in kept)


def _buffers(nodes: Any) -> tuple[dict[str, int], dict[str, int]]:
    """(buffer -> bytes read, buffer -> bytes written) of a kernel; what stays inside is in neither."""
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for node in nodes:
        if not hasattr(node, "read_writes"):  # markers between loops
            continue
        for dependencies, found in ((node.read_writes.reads, read), (node.read_writes.writes, written)):
            for dependency in dependencies:
                found[dependency.name] = max(found.get(dependency.name, 0), _nbytes(dependency))
    return {name: nbytes for name, nbytes in read.items() if name not in written}, written


def _nbytes(dependency: Any) -> int:
    from torch._inductor.virtualized import V

    try:
        whole = size_hint(V.graph.get_numel(dependency.name))
        itemsize = V.graph.get_dtype(dependency.name).itemsize
    except (KeyError, AttributeError, NotImplementedError):
        return 0
    try:
        touched = size_hint(dependency.get_numel())
    except (AttributeError, NotImplementedError):  # the whole buffer
        touched = whole
    return min(whole, touched) * itemsize


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else node


def _hinted(value: Any) -> int:
    return size_hint(value.node.expr) if isinstance(value, torch.SymInt) else int(value)


def _product_flops(node: Any) -> int:
    from torch.utils.flop_counter import flop_registry

    packet = getattr(node.target, "_overloadpacket", None)
    formula = flop_registry.get(packet)
    if formula is None:
        return 0
    args, kwargs = (torch.fx.map_arg(part, _value) for part in (node.args, node.kwargs))
    try:
        return _hinted(formula(*args, **kwargs, out_val=node.meta.get("val")))
    except Exception:  # a report never fails what it reports on
        return 0


def _elements(node: Any) -> int:
    name = getattr(node.target, "__name__", str(node.target)).split(".")[0]
    if name in _MOVES:
        return 0
    values = pytree.tree_leaves(torch.fx.map_arg([node, node.args], _value))
    return max((_hinted(value.numel()) for value in values if isinstance(value, torch.Tensor)), default=0)
