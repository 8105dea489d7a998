"""What ``explain`` returns: plain data, and its text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from vkinductor.codegen.passes import Match
from vkinductor.codegen.report import FallbackReport, KernelReport, PhaseReport


@dataclass(frozen=True)
class BreakReport:
    """Why Dynamo ended a graph before the function's end, and the user's source line."""

    reason: str
    where: str


@dataclass(frozen=True)
class GraphReport:
    """One graph of Dynamo's. ``phases``: "inference", or "forward" and, if gradients were asked for, "backward"."""

    operators: int
    phases: tuple[PhaseReport, ...]

    def kernels(self) -> Iterator[KernelReport]:
        """All launches, in order."""
        for phase in self.phases:
            yield from phase.kernels


@dataclass(frozen=True)
class Explanation:
    """What a model becomes on a device.

    ``ran_on_cpu``: operators that fell back while it ran once, graphs and what lies between them alike, and how often.
    """

    device: str
    graphs: tuple[GraphReport, ...]
    breaks: tuple[BreakReport, ...]
    ran_on_cpu: dict[str, int] = field(default_factory=dict)

    @property
    def kernels(self) -> tuple[KernelReport, ...]:
        """All launches of one call, backward included, in order."""
        return tuple(kernel for graph in self.graphs for kernel in graph.kernels())

    @property
    def fallbacks(self) -> tuple[FallbackReport, ...]:
        """The operators of all graphs that are certain to run on the CPU."""
        found = [f for graph in self.graphs for phase in graph.phases for f in phase.fallbacks]
        return tuple(f for f in found if f.certain)

    @property
    def launches(self) -> int:
        """Kernels launched by one call."""
        return len(self.kernels)

    @property
    def nbytes(self) -> int:
        """Bytes that the kernels of one call read and write."""
        return sum(kernel.nbytes_read + kernel.nbytes_written for kernel in self.kernels)

    @property
    def flops(self) -> int:
        """Operations of one call: matrix products and convolutions, and one an element for everything else."""
        return sum(kernel.product_flops + kernel.elementwise_flops for kernel in self.kernels)

    def glsl(self, name: str) -> str:
        """The GLSL of a kernel. Names need not be whole; raises KeyError that lists them unless one fits."""
        texts = {kernel.name: kernel.glsl for kernel in self.kernels}
        fitting = [known for known in texts if known == name] or [known for known in texts if name in known]
        if len({texts[known] for known in fitting}) != 1:
            raise KeyError(f"{name!r} is {len(fitting)} of the kernels {', '.join(texts)}")
        return texts[fitting[0]]

    def __str__(self) -> str:
        lines = [
            f"{_count(len(self.graphs), 'graph')}, {_count(len(self.breaks), 'graph break')}, "
            f"{_count(self.launches, 'launch', 'launches')} on {self.device}: {_bytes(self.nbytes)}, "
            f"{_flops(self.flops)}"
        ]
        for i, graph in enumerate(self.graphs):
            lines.append(f"\ngraph {i}: {_count(graph.operators, 'operator')}")
            for phase in graph.phases:
                lines += [f"  {phase.phase}: {_count(len(phase.kernels), 'launch', 'launches')}"]
                for kernel in phase.kernels:
                    lines += _kernel_lines(kernel)
                lines += [f"    {_fallback_line(fallback)}" for fallback in phase.fallbacks]
                lines += [f"    {_match_line(match)}" for match in phase.matches]
        for end in self.breaks:
            lines.append(f"\ngraph break: {end.reason}\n  {end.where}")
        if self.ran_on_cpu:
            counts = ", ".join(f"{name} ({times}x)" for name, times in self.ran_on_cpu.items())
            lines.append(f"\nran on the CPU: {counts}")
        return "\n".join(lines)


def _kernel_lines(kernel: KernelReport) -> list[str]:
    flops = kernel.product_flops + kernel.elementwise_flops
    operators = ", ".join(name.removeprefix("aten.").removesuffix(".default") for name in kernel.operators)
    return [
        f"    {kernel.name}: reads {_bytes(kernel.nbytes_read)}, writes {_bytes(kernel.nbytes_written)}, "
        f"{_flops(flops)}",
        f"      {operators}",
        *(f"      {where}" for where in kernel.where),
    ]


def _fallback_line(fallback: FallbackReport) -> str:
    what = "on the CPU" if fallback.certain else "no kernel of the graph"
    return f"{fallback.operator}, {what}: {fallback.reason}" + (f"\n      {fallback.where}" if fallback.where else "")


def _match_line(match: Match) -> str:
    return f"{match.pattern} at {match.node}: " + (f"left as it is: {match.missed}" if match.missed else "one operator")


def _count(n: int, one: str, many: str = "") -> str:
    return f"{n} {one if n == 1 else many or f'{one}s'}"


def _bytes(n: int) -> str:
    return _scaled(n, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def _flops(n: int) -> str:
    return _scaled(n, 1000, ("flop", "kflop", "Mflop", "Gflop", "Tflop"))


def _scaled(n: int, step: int, units: tuple[str, ...]) -> str:
    value, unit = float(n), 0
    while value >= step and unit < len(units) - 1:
        value, unit = value / step, unit + 1
    return f"{n} {units[0]}" if unit == 0 else f"{value:.1f} {units[unit]}"
