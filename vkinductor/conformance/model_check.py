"""Runs one model family on the device and says what came out: errors, fallbacks, kernels, a training step.

The report is what tests assert on and what the models page prints. The reference is the model run eagerly on the CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import vkinductor

from .families import Family, Inputs
from .kernel_count import KernelCounts, counting

MODES = ("cpu tensors", "device tensors")


@dataclass
class Comparison:
    """Tensors against those of a reference, within torch's tolerances for their dtype.

    ``wrong``: a line for each tensor that is not close. ``worst``: the largest absolute difference.
    """

    wrong: list[str] = field(default_factory=list)
    worst: float = 0.0

    def add(self, name: str, actual: Any, expected: Any) -> None:
        """Compare two trees of tensors (dicts, lists, tuples, or None)."""
        if isinstance(expected, torch.Tensor):
            actual, expected = actual.detach().cpu(), expected.detach()
            try:
                torch.testing.assert_close(actual, expected, equal_nan=True)
            except AssertionError as error:
                self.wrong.append(f"{name}: {error}")
            if expected.is_floating_point() and actual.shape == expected.shape and expected.numel():
                self.worst = max(self.worst, float((actual - expected).abs().nan_to_num().max()))
        elif isinstance(expected, dict):
            if list(actual) != list(expected):
                self.wrong.append(f"{name}: {list(actual)} instead of {list(expected)}")
            for key in expected:
                self.add(f"{name}.{key}", actual.get(key), expected[key])
        elif isinstance(expected, (list, tuple)):
            for i, value in enumerate(expected):
                self.add(f"{name}[{i}]", actual[i], value)


@dataclass
class Report:
    """What one run of a family gave.

    ``fallbacks``: operator -> times it ran on the CPU; ``kernels``: of the compiled graphs.
    """

    parameters: int
    compared: Comparison
    fallbacks: dict[str, int]
    kernels: KernelCounts
    device: str  # of the results


def forward(family: Family, mode: str = "cpu tensors", backend: str = "vulkan") -> Report:
    """Compile ``family`` whole (``fullgraph``), run its batch without gradients and compare all results."""
    model, inputs = family.build(), family.inputs()
    with torch.no_grad():
        expected = model(**inputs)
        model, inputs = _placed(model, inputs, mode)
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        vkinductor.reset_stats()
        with counting() as kernels:
            actual = compiled(**inputs)
    return _report(model, {"": actual}, {"": expected}, kernels)


def training_step(family: Family, mode: str = "cpu tensors") -> Report:
    """One forward and backward in training mode: compares results, the gradient of each parameter, and buffers.

    The loss is the mean square of the results.
    """
    model, inputs = family.build().train(), family.inputs()
    twin, placed = _placed(copy.deepcopy(model), inputs, mode)
    expected = model(**inputs)
    _loss(expected).backward()
    compiled = torch.compile(twin, backend="vulkan", fullgraph=True)
    vkinductor.reset_stats()
    with counting() as kernels:
        actual = compiled(**placed)
        _loss(actual).backward()
    want = {"outputs": expected, "grad": _gradients(model), "buffer": dict(model.named_buffers())}
    got = {"outputs": actual, "grad": _gradients(twin), "buffer": dict(twin.named_buffers())}
    return _report(twin, got, want, kernels)


def _placed(model: torch.nn.Module, inputs: Inputs, mode: str) -> tuple[torch.nn.Module, Inputs]:
    if mode == "cpu tensors":
        return model, inputs
    moved = {k: v.to("vulkan") if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}
    return copy.deepcopy(model).to("vulkan"), moved


def _gradients(model: torch.nn.Module) -> dict[str, Any]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def _loss(outputs: Any) -> torch.Tensor:
    total: torch.Tensor = sum(t.square().mean() for t in _tensors(outputs) if t.requires_grad)  # type: ignore[assignment]
    return total


def _report(model: torch.nn.Module, actual: Any, expected: Any, kernels: KernelCounts) -> Report:
    compared = Comparison()
    compared.add("", actual, expected)
    first = next(_tensors(actual))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Report(parameters, compared, vkinductor.stats()["fallbacks"], kernels, first.device.type)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)
