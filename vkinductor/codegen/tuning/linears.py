"""Linear layers of few rows as a family: codegen/fused's tiles, a problem as the operator it came from, its reference.

These are the layers of a decode step: with a norm before, a gate after them, several that share x, weights dense or in
blocks. What follows them (a residual, say) is not part of what is measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import Any

import torch

from vkinductor.device.fused_linear import DENSE, fused_linear
from vkinductor.device.fused_linear import reference as fused_reference
from vkinductor.device.quantized import FORMATS, format_of, linear_reference, quantized_linear
from vkinductor.runtime import context
from vkinductor.runtime.deviceinfo import DeviceInfo

from ..alignment import WIDEST
from ..fused import choose, tiles
from ..fused.choose import Layers, Tile
from ..fused.tiles import FusedTile
from ..quantized import gemv, staged
from ..quantized.chunks import chunk
from ..quantized.formats import packing
from ..quantized.problem import Problem, pitch_of
from ..quantized.staged import StagedTile
from . import compare
from .family import Bucket, Operand, Operation, Size, vector_width

# Columns of the result that are compared with a product in float32: the first and last of each weight, and some others.
_ENDS, _OTHERS = 16, 32
# Bytes of blocks are below this: as scales in half precision two of them are 0.0017 at most, and no result overflows.
_BELOW = 24
# (relative, share of the root mean square): what bytes for floats change (docs/int8-activations.md).
_BYTES = (0.05, 0.05)


class Linears:
    """The family of linear layers of few rows; problems are `fused.choose.Layers`."""

    name = "linears"
    sources: tuple[str, ...] = (
        "codegen/fused",
        "codegen/gemm/skinny.py",
        "codegen/quantized",
        "codegen/alignment.py",
        "codegen/template_kernel.py",
        "codegen/tuning/linears.py",
        "codegen/wide_loads.py",
        "templates",
    )

    def bucket(self, problem: Layers) -> Bucket:
        of = problem.problem
        weights = "+".join("dense" if f == DENSE else format_of(f).name for f in of.formats)
        words = [str(problem.dtype).removeprefix("torch."), weights, of.gate, of.norm]
        flags = {
            "plus_one": of.plus_one,
            "gain": of.gain is not None,
            "shift": of.shift is not None,
            "bias": any(bias is not None for bias in of.biases),
            "tokens": of.tokens is not None,
            "alone": problem.alone,
            "bytes": problem.bytes,
        }
        words += [name for name, holds in flags.items() if holds]
        sizes = [Size("m", problem.m, problem.static), Size("k", of.k)]
        sizes += [Size(f"n{i}", n) for i, n in enumerate(of.sizes)]
        return Bucket(f"{' '.join(filter(None, words))} {of.k // problem.chunks}", tuple(sizes))

    def candidates(self, info: DeviceInfo, problem: Layers) -> Sequence[Tile]:
        return choose.candidates(info, problem)

    def label(self, candidate: Tile) -> str:
        kind = type(candidate).__name__.removesuffix("Tile").lower()
        values = {f.name: (getattr(candidate, f.name), f.default) for f in dataclasses.fields(candidate)}
        return " ".join([kind, *(f"{name}={value}" for name, (value, default) in values.items() if value != default)])

    def estimate(self, info: DeviceInfo, problem: Layers, candidate: Tile) -> float:
        return choose.estimate(info, problem, candidate)

    def forced(self, candidate: Tile) -> AbstractContextManager[Any]:
        if isinstance(candidate, StagedTile):
            return staged.forced(candidate)
        return tiles.forced(candidate) if isinstance(candidate, FusedTile) else gemv.forced(candidate)

    def operation(self, problem: Layers) -> Operation:
        of, dtype, m = problem.problem, problem.dtype, problem.m
        weights = [_weight(n, of.k, number, dtype) for n, number in zip(of.sizes, of.formats, strict=True)]
        vectors = [
            Operand((n,), (1,), dtype) for n, place in zip(of.sizes, of.biases, strict=True) if place is not None
        ]
        vectors += [Operand((of.k,), (1,), dtype) for place in (of.gain, of.shift) if place is not None]
        x = Operand((m, of.k), (of.k, 1), dtype)
        operands = (x, *weights, *vectors)
        columns = of.sizes[0] if of.gate else problem.n
        nbytes = sum(prod(o.size) * o.dtype.itemsize for o in operands)
        as_bytes = choose.rounds_to_bytes(choose.by_rules(context.get().info, problem))
        tolerance = _BYTES if as_bytes else compare.ROUNDING[dtype]

        def check(values: Sequence[torch.Tensor], got: torch.Tensor) -> str | None:
            return _check(problem, values, got, tolerance)

        return Operation(
            lambda *given: _result(problem, given),
            operands,
            nbytes=nbytes + m * columns * dtype.itemsize,
            flops=2 * m * problem.n * of.k,
            check=check,
            tolerance=tolerance,
        )


def _weight(n: int, k: int, number: int, dtype: torch.dtype) -> Operand:
    pitch = pitch_of(number, k)
    kind = (dtype, 0) if number == DENSE else (torch.uint8, _BELOW)
    return Operand((n, pitch), (pitch, 1), *kind)


def _given(problem: Layers, given: Sequence[Any]) -> dict[str, Any]:
    """The operator's arguments, by name."""
    of, (x, *rest) = problem.problem, given
    weights, vectors = rest[: len(of.sizes)], iter(rest[len(of.sizes) :])
    biases = [None if place is None else next(vectors) for place in of.biases]
    gain, shift = (None if place is None else next(vectors) for place in (of.gain, of.shift))
    named = {"gate": of.gate, "norm": of.norm, "eps": of.eps, "gain": gain, "shift": shift, "plus_one": of.plus_one}
    return {"x": x, "weights": weights, "formats": list(of.formats), "biases": biases, **named}


def _result(problem: Layers, given: Sequence[Any]) -> Any:
    if problem.alone:
        return quantized_linear(given[0], given[1], problem.problem.formats[0])
    return fused_linear(**_given(problem, given))


def _check(
    problem: Layers, values: Sequence[torch.Tensor], got: torch.Tensor, tolerance: tuple[float, float]
) -> str | None:
    """In some columns: a vocabulary's weights would take seconds."""
    of = problem.problem
    arguments = _given(problem, values)
    # With a gate a column comes from the same rows of both weights.
    chosen = [_some(n, 0 if of.gate else i) for i, n in enumerate(of.sizes)]
    arguments["weights"] = [w[rows].contiguous() for w, rows in zip(arguments["weights"], chosen, strict=True)]
    arguments["biases"] = [None if b is None else b[r] for b, r in zip(arguments["biases"], chosen, strict=True)]
    if problem.alone:
        want = linear_reference(values[0], arguments["weights"][0], of.formats[0])
    else:
        want = fused_reference(**arguments)
    firsts = [0] if of.gate else [sum(of.sizes[:i]) for i in range(len(of.sizes))]
    columns = torch.cat([first + rows for first, rows in zip(firsts, chosen, strict=False)])
    wrong = compare.difference(got[:, columns], want, tolerance)
    return None if wrong is None else f"in {len(columns)} of the columns: {wrong}"


def _some(n: int, seed: int) -> torch.Tensor:
    others = torch.randint(n, (_OTHERS,), generator=torch.Generator().manual_seed(seed))
    ends = torch.arange(min(_ENDS, n))
    return torch.cat([ends, n - 1 - ends, others]).unique()


def problem_of(
    m: int, k: int, sizes: Sequence[int], dtype: torch.dtype, format: str = "", gate: str = "", norm: str = ""
) -> Layers:
    """The problem of layers with weights [n, ``k``] for each n of ``sizes``, dense or all in one ``format`` (its name),
    and a gain where there is a norm. Raises ValueError where there are no such layers."""
    numbers = {"": DENSE} | {known.name: known.number for known in FORMATS.values()}
    if format not in numbers:
        raise ValueError(f"unknown weight format {format!r}: choose one of {', '.join(filter(None, numbers))}")
    number = numbers[format]
    if gate and (len(sizes) != 2 or sizes[0] != sizes[1]):
        raise ValueError("a gate takes two weights of one size")
    if number != DENSE and k % format_of(number).elements:
        raise ValueError(f"rows of {format} hold a multiple of {format_of(number).elements} weights")
    width = vector_width(k, WIDEST // dtype.itemsize)
    chunks = k // (width if number == DENSE else chunk(packing(number)).weights)
    count = len(sizes)
    gain = 1 + count if norm else None
    shift = 2 + count if norm == "layer" else None
    problem = Problem(
        (number,) * count, tuple(sizes), (None,) * count, gate, norm, 1e-5 if norm else 0.0,
        gain, shift, False, k, (k, *[pitch_of(number, k)] * count),
    )  # fmt: skip
    return Layers(problem, dtype, m, True, chunks)


LINEARS = Linears()
