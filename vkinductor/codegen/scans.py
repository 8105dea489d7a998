"""Scans (cumsum and its kind) inside row kernels: Inductor's ``ops.scan`` with any combine function.

A scan needs its whole workgroup at one place, so it cuts the loop over a row: the row is walked in chunks of
lanes x ``chunk`` elements, each lane holding ``chunk`` neighbours; the parts of the loop before and after the scan run
for a chunk each, and the lanes combine between them (scan.glsl.jinja, scan_section.glsl.jinja). What the chunks before
amount to is carried along, so that a row may have any length.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.codegen.common import CSEVariable, IndentedBuffer
from torch._inductor.utils import upcast_compute_type
from torch._inductor.virtualized import OpsValue, ops
from torch.utils._sympy.value_ranges import ValueRanges

from vkinductor.templates import render

from .operands import as_dtype
from .sections import Section, hoist
from .types import glsl_type, literal

Combine = Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]

# Folds the float-float number (a0, a1) into (b0, b1): two-sum (Knuth, TAOCP 2, 4.2.2, theorem B), then renormalized.
# Past infinity the error terms are inf - inf: they are dropped.
_EXACT_SUM = (
    "precise float total = a0 + b0;",
    "precise float part = total - a0;",
    "precise float lost = ((a0 - (total - part)) + (b0 - part)) + (a1 + b1);",
    "lost = vk_isfinite(lost) ? lost : 0.0;",
    "precise float high = total + lost;",
    "b1 = lost - (high - total);",
    "b0 = high;",
)

# The same for sums of exponentials: a0 + log(a1 + a2), a0 the largest exponent so far. Equal ones may be infinite.
_LOG_SUM = (
    "float top = vk_isnan(a0) ? a0 : (vk_isnan(b0) || b0 >= a0) ? b0 : a0;",
    "float scale_a = a0 == top ? 1.0 : vk_exp(a0 - top);",
    "float scale_b = b0 == top ? 1.0 : vk_exp(b0 - top);",
    "a1 *= scale_a; a2 *= scale_a; b1 *= scale_b; b2 *= scale_b;",
    "precise float total = a1 + b1;",
    "precise float part = total - a1;",
    "precise float lost = ((a1 - (total - part)) + (b1 - part)) + (a2 + b2);",
    "precise float high = total + lost;",
    "b2 = lost - (high - total);",
    "b1 = high;",
    "b0 = top;",
)


def exact_sum(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
    """The combine function of float-float sums (high, low), for ``ir.Scan``.

    Scans of it are computed with ``_EXACT_SUM``; elsewhere the high part is right and the low one is lost.
    """
    return ops.add(ops.add(a[0], b[0]), ops.add(a[1], b[1])), ops.constant(0.0, torch.float32)


def log_sum(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    """The combine function of log(sum(exp(x))), for ``ir.Scan``: (largest x, sum of exp(x - largest)).

    The sums of float32 are float-float, (largest x, high, low): scans of those are computed with ``_LOG_SUM``;
    elsewhere the high part is right and the low one is lost.
    """
    top = ops.maximum(a[0], b[0])

    def scaled(state: tuple[Any, ...]) -> Any:
        factor = ops.exp(ops.sub(state[0], top))  # not of inf - inf
        return ops.where(ops.eq(state[0], top), state[1], ops.mul(state[1], factor))

    return top, ops.add(scaled(a), scaled(b)), *[ops.constant(0.0, torch.float32)] * (len(a) - 2)


# (combine function, registers of its state) -> the statements that compute it.
_WRITTEN: dict[tuple[Any, int], tuple[str, ...]] = {(exact_sum, 2): _EXACT_SUM, (log_sum, 3): _LOG_SUM}


@dataclass(frozen=True)
class Scan:
    """One scan: the registers of its state and the GLSL function ``name`` that folds an earlier state into a later.

    ``start``: what each register of the state begins with: a value's text, or a constant.
    """

    name: str
    registers: tuple[str, ...]
    start: tuple[str, ...]
    body: tuple[str, ...]

    def glsl(self) -> str:
        """Its function: (a0, a1, ...) come before (b0, b1, ...), which receive the combination."""
        earlier = [f"{r} a{i}" for i, r in enumerate(self.registers)]
        later = [f"inout {r} b{i}" for i, r in enumerate(self.registers)]
        lines = "\n".join(f"    {line}" for line in self.body)
        return f"void {self.name}({', '.join(earlier + later)}) {{\n{lines}\n}}"


def _combination(kernel: Any, combine: Combine, dtypes: Sequence[torch.dtype]) -> tuple[str, ...]:
    """Statements that fold a0, a1, ... into b0, b1, ..."""
    scoped = IndentedBuffer()
    arguments = [
        [CSEVariable(f"{side}{i}", ValueRanges.unknown(), d, ()) for i, d in enumerate(dtypes)] for side in "ab"
    ]
    outside, kernel.narrow = kernel.narrow, {}
    with kernel.swap_buffers(scoped):
        kernel.cse.iter_buffer_ids = itertools.count()
        kernel.cse.name_prefix = "mixed"
        kernel.cse._cache = {}
        results = combine(tuple(arguments[0]), tuple(arguments[1]))
    kernel.narrow = outside
    texts = [as_dtype(r.value if isinstance(r, OpsValue) else r, d) for r, d in zip(results, dtypes, strict=True)]
    lines = [line for line in scoped.getvalue().splitlines() if line.strip()]
    registers = [glsl_type(d).register for d in dtypes]
    lines += [f"{r} next{i} = {text};" for i, (r, text) in enumerate(zip(registers, texts, strict=True))]
    return tuple(lines + [f"b{i} = next{i};" for i in range(len(texts))])


def _is_float_sum(body: tuple[str, ...]) -> bool:
    return body == ("float mixed0 = (a0 + b0);", "float next0 = mixed0;", "b0 = next0;")


def scan(kernel: Any, dtypes: Sequence[torch.dtype], combine: Combine, values: Sequence[Any]) -> tuple[Any, ...]:
    """Emit a scan of ``values`` over the row into ``kernel`` (``ops.scan``); the inclusive results.

    float32 sums are kept as float-float numbers: thousands of additions in a row would lose several digits.
    """
    registers = [upcast_compute_type(d) for d in dtypes]
    # int64 values that are indices are scanned as the int32 they were widened from.
    narrow = [kernel.narrow.get(v) if isinstance(v, CSEVariable) else None for v in values]
    kept = [d if n is None else torch.int32 for d, n in zip(registers, narrow, strict=True)]
    start = [as_dtype(v if n is None else n, d) for v, n, d in zip(values, narrow, kept, strict=True)]
    written = _WRITTEN.get((combine, len(kept)))
    body = _combination(kernel, combine, kept) if written is None else written
    key = f"scan {start} {body}"
    results = [kernel.cse.try_get(f"{key} {i}") for i in range(len(values))]
    if all(r is not None for r in results):
        return tuple(results)
    results = []
    state = list(kept)
    if _is_float_sum(body):
        state, start, body = [torch.float32] * 2, [*start, literal(0, torch.float32)], _EXACT_SUM
    kinds = tuple(glsl_type(d).register for d in state)
    name = f"scan{len(kernel.scans)}"
    kernel.scans.append(Scan(name, kinds, tuple(start), body))
    kernel.close_part(name)
    for i, (value_dtype, dtype) in enumerate(zip(registers, kept, strict=True)):
        result = kernel.cse.newvar(dtype=dtype, shape=())
        kernel.compute.writeline(f"{glsl_type(dtype).register} {result} = {name}_{i}[k];")
        if dtype != value_dtype:
            wide = kernel.cse.generate(kernel.compute, as_dtype(result, value_dtype), dtype=value_dtype, shape=())
            kernel.narrow[wide] = result
            result = wide
        kernel.cse.put(f"{key} {i}", result)
        results.append(result)
    return tuple(results)


def section(
    kernel: Any, indexing: list[str], parts: list[list[str]], names: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The loop over a row that scans ``names`` cut into ``parts``: (declarations before the loop, the loop).

    ``indexing``: statements on the element's index that every part begins with.
    """
    layout = kernel.layout
    scans = [next(s for s in kernel.scans if s.name == name) for name in names]
    bodies = [Section(True, body=list(part)) for part in parts]
    for body, scan_ in zip(bodies, scans, strict=False):
        body.body += [f"{scan_.name}_{i}[k] = {text};" for i, text in enumerate(scan_.start)]
    hoisted = hoist(bodies, layout.chunk)
    steps = []
    for scan_ in scans:
        counts: dict[str, int] = {}
        shared = []
        for register in scan_.registers if layout.lanes > 1 else ():
            counts[register] = counts.get(register, 0) + 1
            shared.append(kernel.shared_array(register, counts[register]))
        text = render("scan.glsl.jinja", scan=scan_, shared=shared, lanes=layout.lanes, chunk=layout.chunk)
        steps.append([line for line in text.splitlines() if line.strip()])
    text = render(
        "scan_section.glsl.jinja",
        index=kernel.index_dtype,
        lanes=layout.lanes,
        chunk=layout.chunk,
        scans=scans,
        hoisted=hoisted,
        indexing=indexing,
        parts=[body.body for body in bodies],
        steps=steps,
    )
    carries = [f"{r} {s.name}_carry{i};" for s in scans for i, r in enumerate(s.registers)]
    return carries, [line for line in text.splitlines() if line.strip()]
