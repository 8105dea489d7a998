"""Linear layers that share x as their kernels see them, and what a template knows of each weight.

Of one weight it is a linear layer alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..template_kernel import VulkanTemplateKernel
from ..types import glsl_type


@dataclass(frozen=True)
class Problem:
    """vkinductor.fused_linear with its operands in memory, by their places among a node's inputs: x, then the weights.

    ``pitches``: elements from a row to the next of each of those.
    """

    formats: tuple[int, ...]
    sizes: tuple[int, ...]
    biases: tuple[int | None, ...]
    gate: str
    norm: str
    eps: float
    gain: int | None
    shift: int | None
    plus_one: bool
    k: int
    pitches: tuple[int, ...]

    @staticmethod
    def alone(number: int, k: int, n: int, *pitches: int) -> Problem:
        """One weight [n, bytes of k] and nothing else."""
        return Problem((number,), (n,), (None,), "", "", 0.0, None, None, False, k, pitches)


def parts_of(kernel: VulkanTemplateKernel, problem: Problem, per_group: int) -> tuple[list[dict[str, Any]], int]:
    """Each weight for the template (where it lies, its first workgroup and column), and the number of workgroups."""
    parts: list[dict[str, Any]] = []
    first = column = 0
    for i, (n, bias) in enumerate(zip(problem.sizes, problem.biases, strict=True)):
        weight = kernel.inputs[1 + i]
        parts.append(
            {
                "number": i,
                "n": n,
                "first": first,
                "column": column,
                "address": kernel.address(1 + i),
                "pitch": problem.pitches[1 + i] * weight.get_dtype().itemsize,
                "bias": None if bias is None else element(kernel, bias),
            }
        )
        if not problem.gate or i == 0:
            first += -(-n // per_group)
            column += n
    return parts, first


def element(kernel: VulkanTemplateKernel, position: int) -> Any:
    entry, address = glsl_type(kernel.inputs[position].get_dtype()), kernel.address(position)
    load = entry.load.format(f"{entry.buffer}({address} + uint64_t(uint({{}})) * {entry.nbytes}ul).d[0]")
    return load.format
