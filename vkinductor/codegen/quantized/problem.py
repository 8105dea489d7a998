"""Linear layers that share x as their kernels see them, and what a template knows of each weight.

Of one weight it is a linear layer alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from vkinductor.device.fused_linear import DENSE
from vkinductor.device.quantized import format_of
from vkinductor.runtime.deviceinfo import DeviceInfo

from ..template_kernel import VulkanTemplateKernel
from ..types import glsl_type, literal
from .operands import row_of_table


def pitch_of(number: int, k: int) -> int:
    """Elements from a row of ``k`` weights of that format to the next where no gaps are between them."""
    return k if number == DENSE else format_of(number).row_bytes(k)


@dataclass(frozen=True)
class Problem:
    """vkinductor.fused_linear with its operands in memory, by their places among a node's inputs: x, then the weights.

    ``pitches``: elements from a row to the next of each of those. ``tokens``: the place of the tokens that name x's
    rows, where x is a table of so many ``table`` rows.
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
    tokens: int | None = None
    table: int = 0

    @property
    def lies_plain(self) -> bool:
        """Whether rows of weights follow each other without gaps."""
        return self.pitches[1 : 1 + len(self.formats)] == tuple(pitch_of(f, self.k) for f in self.formats)

    @staticmethod
    def alone(number: int, k: int, n: int, *pitches: int) -> Problem:
        """One weight [n, bytes of k] and nothing else."""
        return Problem((number,), (n,), (None,), "", "", 0.0, None, None, False, k, pitches)


class Tile(Protocol):
    """What their kernels' tiles have in common."""

    @property
    def threads(self) -> int:
        """Invocations of a workgroup."""

    @property
    def lanes(self) -> int:
        """Those of a team."""

    @property
    def rows(self) -> int:
        """Of weights that a team takes at a time (of each of two with a gate)."""

    def cluster(self, info: DeviceInfo) -> int:
        """How many neighbours add up by subgroup arithmetic."""


def _parts(kernel: VulkanTemplateKernel, problem: Problem, per_group: int) -> tuple[list[dict[str, Any]], int]:
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


def context_of(kernel: VulkanTemplateKernel, problem: Problem, tile: Tile, tm: int) -> tuple[dict[str, Any], int]:
    """What every template of these layers is told for ``tm`` rows of x at a time, and workgroups for so many."""
    parts, tiles = _parts(kernel, problem, tile.threads // tile.lanes * tile.rows)
    x, info, cluster = kernel.inputs[0], kernel.device_info, tile.cluster(kernel.device_info)
    gain = None if problem.gain is None else kernel.inputs[problem.gain]
    values = {
        "threads": tile.threads,
        "lanes": tile.lanes,
        "rows": tile.rows,
        "slots": tile.rows * (2 if problem.gate else 1),
        "tm": tm,
        "m": kernel.size(kernel.node.get_size()[0]),
        "k": problem.k,
        "one_over_k": literal(1 / problem.k, torch.float32),
        "columns": problem.sizes[0] if problem.gate else sum(problem.sizes),
        "tiles": tiles,
        "parts": parts,
        "gate": problem.gate,
        "norm": problem.norm,
        "eps": literal(problem.eps, torch.float32),
        "plus_one": problem.plus_one,
        "gain": "" if problem.gain is None else kernel.address(problem.gain),
        "gain_bytes": 0 if gain is None else gain.get_dtype().itemsize,
        "x_row": _row_of(kernel, problem),
        "x_bytes": x.get_dtype().itemsize,
        "cluster": cluster,
        "best": None,
        "whole_subgroup": cluster == info.limits.subgroup_size_max,
    }
    return values, tiles


def _row_of(kernel: VulkanTemplateKernel, problem: Problem) -> Any:
    """A function from GLSL of a row's number to GLSL of its address."""
    pitch = problem.pitches[0] * kernel.inputs[0].get_dtype().itemsize
    address = f"{kernel.address(0)} + uint64_t({{}}) * {pitch}ul"
    if problem.tokens is None:
        return lambda row: address.format(f"uint({row})")
    stride = kernel.size(kernel.inputs[problem.tokens].get_layout().stride[0])
    named = row_of_table(kernel.operand(problem.tokens), stride, str(problem.table))
    return lambda row: address.format(named(row))


def element(kernel: VulkanTemplateKernel, position: int) -> Any:
    entry, address = glsl_type(kernel.inputs[position].get_dtype()), kernel.address(position)
    load = entry.load.format(f"{entry.buffer}({address} + uint64_t(uint({{}})) * {entry.nbytes}ul).d[0]")
    return load.format
