"""``explain``: compile and run a model once, beside what the user has compiled, and note what becomes of it.

Owns leaving no trace: the model is a copy, inputs are clones, gradients are not accumulated, and compiled code,
counters, random numbers and warnings are afterwards what they were.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from vkinductor import backend
from vkinductor.codegen import compat
from vkinductor.codegen.report import Report
from vkinductor.device.registry import registry
from vkinductor.runtime import context, stats
from vkinductor.runtime.errors import VulkanError, find

from .explanation import BreakReport, Explanation, GraphReport

_numbers = itertools.count(1)


def explain(
    model: Any,
    inputs: tuple[Any, ...],
    named: Mapping[str, Any],
    dynamic: bool | None,
    options: Mapping[str, Any] | None,
) -> Explanation:
    """See ``vkinductor.explain``."""
    registry.open()
    graphs: list[tuple[int, Report]] = []
    breaks: list[BreakReport] = []
    patches = {**backend.settings(None, options), "force_disable_caches": True}

    def compile_graph(module: torch.fx.GraphModule, examples: Any) -> Any:
        number, report = next(_numbers), Report()
        registry.reports[number] = report
        graphs.append((number, report))
        operators.append(sum(n.op in ("call_function", "call_method", "call_module") for n in module.graph.nodes))
        reason = getattr(module, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            breaks.append(_break(reason))
        return backend.compile_graph(module, examples, {**patches, "vulkan.report": number})

    operators: list[int] = []
    with _undisturbed():
        try:
            ran = _run(model, inputs, named, compile_graph, dynamic)
        except Exception as error:
            ours = find(error, VulkanError)
            if ours is None:
                raise
            raise ours from None
        finally:
            for number, _ in graphs:
                registry.reports.pop(number, None)
    found = tuple(
        GraphReport(count, tuple(report.phases.values())) for count, (_, report) in zip(operators, graphs, strict=True)
    )
    return Explanation(context.get().info.name, found, tuple(breaks), ran)


def _run(model: Any, inputs: Any, named: Any, compile_graph: Any, dynamic: bool | None) -> dict[str, int]:
    """Run a copy once, and backward when a result wants gradients. Returns what fell back."""
    model = _copied(model)
    inputs, named = pytree.tree_map_only(torch.Tensor, _cloned, (inputs, dict(named)))
    before = dict(stats.counters.fallbacks)
    with compat.dynamo_undisturbed():
        result = torch.compile(model, backend=compile_graph, dynamic=dynamic)(*inputs, **named)
        outputs = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
        leaves = _leaves(outputs)
        if leaves:
            gradients = [torch.ones_like(output) for output in outputs]
            torch.autograd.grad(outputs, leaves, gradients, allow_unused=True)
    after = stats.counters.fallbacks
    return {name: n - before.get(name, 0) for name, n in after.items() if n > before.get(name, 0)}


def _copied(model: Any) -> Any:
    if isinstance(model, torch.nn.Module):
        with contextlib.suppress(Exception):  # some cannot be copied: then the model itself runs
            return copy.deepcopy(model)
    return model


def _cloned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _leaves(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that a backward would accumulate gradients into."""
    found: dict[int, torch.Tensor] = {}
    todo = [output.grad_fn for output in outputs]
    seen: set[Any] = set()
    while todo:
        node: Any = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found[id(leaf)] = leaf
        todo += [following for following, _ in node.next_functions]
    return list(found.values())


def _break(reason: Any) -> BreakReport:
    stack = reason.user_stack
    where = f"{stack[-1].filename}:{stack[-1].lineno} in {stack[-1].name}: {stack[-1].line}" if stack else ""
    lines = [line.strip() for line in str(reason.reason).strip().splitlines()]
    why = [line.partition("Explanation: ")[2] for line in lines if line.startswith("Explanation: ")]
    return BreakReport(": ".join([lines[0], *why]), where)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Counters, random numbers and what has been warned about come back."""
    counts, warned = stats.counters.snapshot(), set(registry.warned)
    vulkan: Any = torch.get_device_module("vulkan")
    states = torch.get_rng_state(), vulkan.get_rng_state()
    policy = registry.fallback_policy
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            registry.fallback_policy = "allow"
            yield
    finally:
        registry.fallback_policy = policy
        torch.set_rng_state(states[0])
        vulkan.set_rng_state(states[1])
        registry.warned.clear()
        registry.warned.update(warned)
        for name, value in counts.items():
            setattr(stats.counters, name, value)
