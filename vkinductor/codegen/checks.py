"""Comparing each kernel with the CPU (``options={"check": True}``), while a graph runs.

A kernel's results are buffers, and Inductor knows for most of them which FX node's value they hold. After each launch
the node is evaluated on the CPU in float64 from what the device itself has computed before, so that an error shows
where it arises and does not add up. Owns that evaluation and the comparison; what was found is kept in
`device.registry`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from vkinductor.device.registry import registry
from vkinductor.runtime.errors import CheckError

from . import fallbacks
from .report import origins_of

# (relative, absolute) error that a kernel may have, the absolute one in units of the result's largest value if that is
# above 1: those of torch.testing.assert_close. What rounding every operator's result to its dtype changes is allowed
# beside it: a kernel may keep some of them in memory, and some results are that sensitive.
TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
}
ROUNDING = 2.0  # times the largest such change
# Part of integer results that may differ when floating-point numbers decide them: ties fall either way.
TIES = 1e-3

_RANDOM = ("rand", "seed", "bernoulli", "dropout", "normal", "exponential", "multinomial", "poisson")


class VulkanCheckWarning(UserWarning):
    """A kernel's result is further from the CPU's than its dtype explains."""


@dataclass(frozen=True)
class KernelCheck:
    """One result of one kernel, compared in all calls so far; the errors are those of the worst call.

    ``absolute``, ``relative`` and ``ulp`` (units in the last place of the dtype) are each the largest. ``position``,
    ``got`` and ``want``: where the allowed error is exceeded most, or nearly. For integers ``absolute`` counts, too.
    ``skipped``: why nothing was compared, "" otherwise.
    """

    kernel: str
    buffer: str
    operators: tuple[str, ...]
    where: str
    dtype: str
    calls: int = 0
    ok: bool = True
    absolute: float = 0.0
    relative: float = 0.0
    ulp: float = 0.0
    position: tuple[int, ...] = ()
    got: float = 0.0
    want: float = 0.0
    skipped: str = ""

    def __str__(self) -> str:
        head = f"{self.kernel} ({', '.join(self.operators)}), {self.buffer}"
        if self.skipped:
            return f"{head}: not compared: {self.skipped}"
        return (
            f"{head}, {self.dtype}: {'ok' if self.ok else 'WRONG'}, errors {self.absolute:.3g} absolute, "
            f"{self.relative:.3g} relative, {self.ulp:.3g} ulp; at {[*self.position]} {self.got!r}, the CPU has "
            f"{self.want!r}" + (f"\n  {self.where}" if self.where and not self.ok else "")
        )


@dataclass
class CheckedGraph:
    """What a compiled graph needs at its calls: the FX graph, and the values that are known while one runs."""

    module: Any
    nodes: dict[str, Any]
    inputs: list[Any]
    policy: str
    kernels: list[tuple[str, tuple[str, ...], str]] = field(default_factory=list)
    known: dict[Any, Any] = field(default_factory=dict)

    def begin(self, arguments: Sequence[Any]) -> None:
        """A call begins: its arguments are known."""
        self.known = {node: _kept(value) for node, value in zip(self.inputs, arguments, strict=True)}

    def learn(self, name: str, value: Any) -> None:
        """The value of a node that no kernel of ours computes."""
        self.known[self.nodes[name]] = _kept(value)

    def compare(self, kernel: int, results: Mapping[str, tuple[str, torch.Tensor]]) -> None:
        """Compare the results of a launch: buffer -> (node whose value it holds, tensor).

        Raises CheckError, or warns, when one is off; see ``registry.checks`` for all.
        """
        kept = {buffer: (self.nodes[name], _kept(tensor)) for buffer, (name, tensor) in results.items()}
        evaluation = _Evaluation(self.module, self.known)
        rounding = _Evaluation(self.module, self.known, rounded=True)
        found = []
        for buffer, (node, got) in kept.items():
            name, operators, where = self.kernels[kernel]
            check = KernelCheck(name, buffer, operators, where, str(got.dtype).removeprefix("torch."), 1)
            try:
                want, exact = evaluation.value(node)
                noise = _largest(rounding.value(node)[0] - want) if got.is_floating_point() else 0.0
                found.append(_compared(check, got, want, exact, noise))
            except Exception as error:  # whatever the CPU cannot do in float64
                found.append(replace(check, skipped=f"{type(error).__name__}: {error}".splitlines()[0]))
        # Only now: another result of the same kernel was computed from values that had not been rounded.
        for node, got in kept.values():
            self.known[node] = got
        for check in found:
            _keep(check)
        wrong = [check for check in found if not check.ok]
        if wrong:
            text = "\n".join(map(str, wrong))
            if self.policy == "error":
                raise CheckError(text)
            warnings.warn(text, VulkanCheckWarning, stacklevel=3)


def _keep(check: KernelCheck) -> None:
    key = (check.kernel, check.operators, check.buffer, check.dtype)
    before = registry.checks.get(key)
    if before is not None:
        worse = check if (not check.ok, check.ulp) >= (not before.ok, before.ulp) else before
        check = replace(
            worse,
            calls=before.calls + 1,
            absolute=max(check.absolute, before.absolute),
            relative=max(check.relative, before.relative),
            ulp=max(check.ulp, before.ulp),
        )
    registry.checks[key] = check


def _kept(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


# Evaluating ------------------------------------------------------------------------------------------------


class _Evaluation:
    """Values of FX nodes in float64, from those that are known. ``rounded``: each to the dtype that it has in torch."""

    def __init__(self, module: Any, known: Mapping[Any, Any], rounded: bool = False) -> None:
        self._module, self._known, self._rounded = module, dict(known), rounded
        self._values: dict[Any, Any] = {}
        self._order = {node: i for i, node in enumerate(module.graph.nodes)}

    def value(self, node: Any) -> tuple[torch.Tensor, bool]:
        """(value, whether no floating-point number is behind it). Raises whatever keeps it from being computed."""
        needed = self._needed(node)
        for each in sorted(needed, key=self._order.__getitem__):
            if each not in self._values:
                self._values[each] = self._evaluated(each)
        value = self._values[node]
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{node.target} has no single tensor for a result")
        tensors = [v for n in needed for v in pytree.tree_leaves(self._values[n]) if isinstance(v, torch.Tensor)]
        return value, not any(t.is_floating_point() or t.is_complex() for t in tensors)

    def _needed(self, node: Any) -> set[Any]:
        found: set[Any] = set()
        todo = [node]
        while todo:
            at = todo.pop()
            if at not in found:
                found.add(at)
                if at not in self._known:
                    todo += at.all_input_nodes
        return found

    def _evaluated(self, node: Any) -> Any:
        if node in self._known:
            return _wide(self._known[node])
        if node.op == "get_attr":
            value = self._module
            for part in node.target.split("."):
                value = getattr(value, part)
            return _wide(_kept(value))
        if node.op != "call_function":
            raise TypeError(f"{node.op} {node.target} is not evaluated")
        name = str(node.target)
        if any(part in name for part in _RANDOM):
            raise TypeError(f"{name} is random")
        if name in ("aten.view.dtype", "prims.view_of_dtype.default"):
            raise TypeError(f"{name} looks at bits")
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self._values.__getitem__)
        args, kwargs = pytree.tree_map(_wide, (args, kwargs))
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
        result = node.target(*args, **kwargs)
        if not self._rounded:
            return result
        leaves, spec = pytree.tree_flatten(result)
        examples = pytree.tree_leaves(node.meta.get("val"))
        if len(leaves) != len(examples):
            return result
        return pytree.tree_unflatten(map(_as_in_torch, leaves, examples), spec)


def _as_in_torch(value: Any, example: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not isinstance(example, torch.Tensor):
        return value
    return value.to(example.dtype).to(value.dtype) if value.is_floating_point() else value


def _largest(difference: torch.Tensor) -> float:
    finite = difference[difference.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _wide(value: Any) -> Any:
    """Floating-point tensors and dtypes as float64, complex ones as complex128, devices as the CPU."""
    if isinstance(value, torch.Tensor):
        return value.to(_wide(value.dtype)) if value.is_floating_point() or value.is_complex() else value
    if isinstance(value, torch.dtype):
        if value.is_floating_point:
            return torch.float64
        return torch.complex128 if value.is_complex else value
    return torch.device("cpu") if isinstance(value, torch.device) else value


# Comparing -------------------------------------------------------------------------------------------------


def _compared(check: KernelCheck, got: torch.Tensor, want: torch.Tensor, exact: bool, noise: float) -> KernelCheck:
    if got.shape != want.shape:
        raise TypeError(f"the buffer's shape {[*got.shape]} is not that of its node, {[*want.shape]}")
    if not got.numel():
        return check
    if not got.is_floating_point():
        return _compared_exactly(check, got, want, exact)
    relative_limit, absolute_limit = TOLERANCES[got.dtype]
    actual, expected = got.double(), want.double()
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    # What float64 can hold and the dtype cannot becomes infinite on the way.
    same |= actual == expected.to(got.dtype).double()
    difference = torch.where(same, 0.0, (actual - expected).abs()).nan_to_num(math.inf, math.inf)
    size = expected.abs().nan_to_num(0.0, 0.0, 0.0)
    scale = max(1.0, float(size.max()))
    excess = difference / (absolute_limit * scale + relative_limit * size + ROUNDING * noise)
    at = _unravel(int(excess.argmax()), got.shape)
    spacing = _ulp(size, got.dtype)
    nonzero = torch.where(size > 0, difference / size, 0.0)
    return replace(
        check,
        ok=bool(excess.max() <= 1),
        absolute=float(difference.max()),
        relative=float(nonzero.max()),
        ulp=float((difference / spacing).max()),
        position=at,
        got=got[at].item(),
        want=want[at].item(),
    )


def _compared_exactly(check: KernelCheck, got: torch.Tensor, want: torch.Tensor, exact: bool) -> KernelCheck:
    different = got != want.to(got.dtype)
    count = int(different.sum())
    at = _unravel(int(different.int().argmax()), got.shape)
    gap = (got.double() - want.double()).abs().max()
    return replace(
        check,
        ok=count == 0 or (not exact and count <= max(1, TIES * got.numel())),
        absolute=float(gap),
        ulp=float(gap),
        position=at,
        got=got[at].item(),
        want=want[at].item(),
    )


def _ulp(size: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance of neighbouring numbers of a dtype around values of these sizes."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(size.clamp(min=info.tiny))[1] - 1
    return torch.ldexp(torch.full_like(size, info.eps), exponent)


def _unravel(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    position = []
    for size in reversed(shape):
        position.append(flat % size)
        flat //= size
    return tuple(reversed(position))


# While code is generated -----------------------------------------------------------------------------------


def open_graph(policy: str) -> int:
    """Prepare the graph that is being lowered; returns the number under which its program finds it."""
    from torch._inductor.virtualized import V

    module: Any = V.graph.module
    nodes = {node.name: node for node in module.graph.nodes}
    inputs = [node for node in nodes.values() if node.op == "placeholder"]
    registry.checked_graphs.append(CheckedGraph(module, nodes, inputs, policy))
    return len(registry.checked_graphs) - 1


def note_kernel(number: int, kernel: str, nodes: Sequence[Any], live: Any) -> tuple[int, dict[str, tuple[str, str]]]:
    """Note a launch. Returns its number and, for each buffer to compare: (FX node, variable of the program)."""
    from torch._inductor.virtualized import V

    graph: CheckedGraph = registry.checked_graphs[number]
    scheduled = [node for node in nodes if hasattr(node, "get_outputs")]
    order = {node: i for i, node in enumerate(graph.module.graph.nodes)}
    real, last = V.graph.scheduler.mutation_real_name, V.graph.scheduler.mutation_renames
    origins = sorted({o for node in scheduled for o in origins_of(node)}, key=lambda o: order.get(o, -1))
    operators = tuple(str(o.target) for o in origins if o.op == "call_function")
    graph.kernels.append((kernel, operators, fallbacks.position(origins)))
    found = {}
    for node in scheduled:
        for output in node.get_outputs():
            name = output.get_name()
            variable = real.get(name, name)
            if last.get(variable, name) != name or not {name, variable} & live:
                continue  # a later kernel writes into it, too; or it never leaves this one
            origin = output.node.get_origin_node()
            if origin is None and variable != name:  # whose value it is was noted when it was made
                buffer: Any = V.graph.try_get_buffer(variable)
                origin = buffer.get_origin_node() if hasattr(buffer, "get_origin_node") else None
            if origin is not None and origin.name in graph.nodes:
                found[name] = (origin.name, variable)
    return len(graph.kernels) - 1, found


def note_extern(number: int, node: Any) -> tuple[str, str] | None:
    """(FX node, variable) of what an operator that is no kernel of ours computes, if it is a tensor."""
    from torch._inductor import ir

    origin: Any = node.get_origin_node() if hasattr(node, "get_origin_node") else None
    if origin is None or origin.name not in registry.checked_graphs[number].nodes:
        return None
    return (origin.name, node.get_name()) if isinstance(getattr(node, "layout", None), ir.Layout) else None


def checked_graph(number: int) -> CheckedGraph:
    """What a generated program asks for at its calls."""
    graph: CheckedGraph = registry.checked_graphs[number]
    return graph
