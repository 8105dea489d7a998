"""The problems that `python -m vkinductor tune` takes by name: one class an option, which parses itself."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32")
LAYOUTS = ("nn", "nt", "tn", "tt")


@dataclass(frozen=True)
class Spec:
    """A problem. ``option``, ``metavar``, ``help``: as the command line shows it; ``noun``, ``example``: for messages;
    ``dtypes``: those of the family; ``least``: of the sizes at these positions, where it is not 1."""

    option: ClassVar[str]
    metavar: ClassVar[str]
    help: ClassVar[str]
    noun: ClassVar[str]
    example: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]]
    least: ClassVar[dict[int, int]] = {}

    @classmethod
    def parse(cls, text: str) -> Any:
        """The problem that ``text`` names. Raises ArgumentTypeError."""
        words = [word.strip() for word in text.split(",")]
        count = next((i for i, word in enumerate(words) if not _is_size(word)), len(words))
        numbers = [[int(n) for n in word.split("/")] for word in words[:count]]
        fail = _failing(text)
        if any(n < cls.least.get(i, 1) for i, number in enumerate(numbers) for n in number):
            raise fail("sizes are at least 1")
        made = cls.of(numbers, words[count:], fail)
        if made is None:
            raise argparse.ArgumentTypeError(f"{text!r} is no {cls.noun}: write {cls.metavar}, such as {cls.example}")
        if made.dtype not in cls.dtypes:
            raise fail(f"unknown dtype {made.dtype!r}: choose one of {', '.join(cls.dtypes)}")
        return made

    @classmethod
    def of(cls, numbers: list[list[int]], words: list[str], fail: Any) -> Any:
        """From the sizes (of more than one number where a / stood) and the words behind them; None where these make no
        problem. Raises what ``fail(why)`` returns."""
        raise NotImplementedError

    def problem(self) -> tuple[Any, Any]:
        """(family, problem) of codegen/tuning."""
        raise NotImplementedError

    def problems(self) -> list[tuple[Any, Any]]:
        """`problem`, and others that graphs make of it."""
        return [self.problem()]


def _is_size(word: str) -> bool:
    return all(part.strip().lstrip("-").isdecimal() for part in word.split("/"))


def _failing(text: str) -> Callable[[str], argparse.ArgumentTypeError]:
    return lambda why: argparse.ArgumentTypeError(f"{text!r}: {why}")


def _defaulted(words: Sequence[str], *defaults: str) -> list[str] | None:
    """``words`` and what is not given; None where they are too many."""
    return None if len(words) > len(defaults) else [*words, *defaults[len(words) :]]


@dataclass(frozen=True)
class GemmSpec(Spec):
    """One --gemm."""

    option = "--gemm"
    metavar = "[B,]M,N,K[,DTYPE[,LAYOUT]]"
    help = (
        "a matrix product (repeatable). DTYPE: float32 unless given. LAYOUT: n or t (transposed) for each "
        "operand, nn unless given; nt is nn.Linear"
    )
    noun = "matrix product"
    example = "4096,4096,4096,float16,nt"
    dtypes = (*FLOATS, "float64", "int8")

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    layout: str

    @classmethod
    def of(cls, numbers: list[list[int]], words: list[str], fail: Any) -> GemmSpec | None:
        rest = _defaulted(words, "float32", "nn")
        if rest is None or len(numbers) not in (3, 4) or any(len(n) > 1 for n in numbers):
            return None
        if rest[1] not in LAYOUTS:
            raise fail(
                f"unknown layout {rest[1]!r}: choose one of {', '.join(LAYOUTS)} (n: as written, t: transposed; "
                "nn.Linear is nt)"
            )
        batch, m, n, k = [1, *(n for (n,) in numbers)][-4:]
        return cls(batch, m, n, k, *rest)

    def problem(self) -> tuple[Any, Any]:
        import torch

        from vkinductor.codegen.tuning.gemm import GEMM, problem_of

        return GEMM, problem_of(self.batch, self.m, self.n, self.k, getattr(torch, self.dtype), self.layout)

    def problems(self) -> list[tuple[Any, Any]]:
        from vkinductor.codegen.tuning.gemm import as_it_waits

        family, problem = self.problem()
        waiting = dataclasses.replace(problem, waits=True)
        return [(family, problem), *([(family, waiting)] if as_it_waits(waiting) else [])]


@dataclass(frozen=True)
class LinearSpec(Spec):
    """One --linear."""

    option = "--linear"
    metavar = "M,K,N[/N...][,DTYPE][,FORMAT][,NORM][,GATE]"
    help = (
        "linear layers that share their M rows (16 at most), as of a decode step: weights of N rows each of K elements "
        "(repeatable). DTYPE: of the rows, float16 unless given; FORMAT: a GGUF format of the weights, of DTYPE "
        "without one; NORM before them: rms or layer; GATE of two after them: silu, gelu, gelu_tanh or relu"
    )
    noun = "linear layer"
    example = "1,2048,5632/5632,float16,Q4_K,rms,silu"
    dtypes = FLOATS

    m: int
    k: int
    sizes: tuple[int, ...]
    dtype: str
    format: str
    norm: str
    gate: str

    @classmethod
    def of(cls, numbers: list[list[int]], words: list[str], fail: Any) -> LinearSpec | None:
        from vkinductor.codegen.fused.choose import MOST_TUNED_ROWS
        from vkinductor.device.fused_linear import GATES, NORMS
        from vkinductor.device.quantized import FORMATS

        if len(numbers) != 3 or any(len(n) > 1 for n in numbers[:2]):
            return None
        known = {
            "dtype": FLOATS,
            "format": tuple(f.name for f in FORMATS.values()),
            "norm": tuple(filter(None, NORMS)),
            "gate": tuple(GATES),
        }
        plain = {"dtype": "float16", "format": "", "norm": "", "gate": ""}
        found: dict[str, str] = {}
        for word in words:
            kind = next((kind for kind, names in known.items() if word in names), None)
            if kind is None:
                raise fail(f"unknown {word!r}: choose of {'; '.join(', '.join(names) for names in known.values())}")
            if kind in found:
                raise fail(f"{found[kind]} and {word}: one {kind}, please")
            found[kind] = word
        (m,), (k,), sizes = numbers
        if m > MOST_TUNED_ROWS:
            raise fail(f"these layers have at most {MOST_TUNED_ROWS} rows; with more they are products: use --gemm")
        made = cls(m, k, tuple(sizes), **{**plain, **found})
        try:
            made.problem()
        except ValueError as why:
            raise fail(str(why)) from None
        return made

    def problem(self) -> tuple[Any, Any]:
        import torch

        from vkinductor.codegen.tuning.linears import LINEARS, problem_of

        dtype = getattr(torch, self.dtype)
        return LINEARS, problem_of(self.m, self.k, self.sizes, dtype, self.format, self.gate, self.norm)


@dataclass(frozen=True)
class AttentionSpec(Spec):
    """One --attention."""

    option = "--attention"
    metavar = "B,H[/G],T[/S],D[,DTYPE[,causal]]"
    help = (
        "attention of B batches, H heads (G of keys and values), T queries (S keys), D columns a head "
        "(repeatable). DTYPE: float16 unless given"
    )
    noun = "attention"
    example = "1,32/8,1/8192,128,float16"
    dtypes = FLOATS

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    width: int
    dtype: str
    causal: bool

    @classmethod
    def of(cls, numbers: list[list[int]], words: list[str], fail: Any) -> AttentionSpec | None:
        rest = _defaulted(words, "float16", "")
        if rest is None or rest[1] not in ("", "causal") or len(numbers) != 4:
            return None
        if any(len(n) > most for n, most in zip(numbers, (1, 2, 2, 1), strict=True)):
            return None
        (batch,), heads, queries, (width,) = numbers
        if heads[0] % heads[-1]:
            raise fail(f"{heads[0]} heads cannot share {heads[-1]} heads of keys")
        if width > 256:
            raise fail("heads have at most 256 columns")
        return cls(batch, heads[0], heads[-1], queries[0], queries[-1], width, rest[0], bool(rest[1]))

    def problem(self) -> tuple[Any, Any]:
        import torch

        from vkinductor.codegen.tuning.attention import ATTENTION, problem_of

        sizes = (self.batch, self.heads, self.groups, self.queries, self.keys, self.width)
        return ATTENTION, problem_of(*sizes, getattr(torch, self.dtype), self.causal)


@dataclass(frozen=True)
class ConvSpec(Spec):
    """One --conv."""

    option = "--conv"
    metavar = "N,C,H,W,O,K[,STRIDE[,PADDING]][,DTYPE]"
    help = (
        "a convolution of N images of C channels and H x W elements with channels last, O channels of results and a "
        "kernel of K x K (repeatable). STRIDE: 1, PADDING: 0, DTYPE: float16 unless given"
    )
    noun = "convolution"
    example = "32,64,56,56,64,3,1,1,float16"
    dtypes = HALVES
    least: ClassVar[dict[int, int]] = {7: 0}  # padding

    batch: int
    channels: int
    height: int
    width: int
    outputs: int
    tap: int
    stride: int
    padding: int
    dtype: str

    @classmethod
    def of(cls, numbers: list[list[int]], words: list[str], fail: Any) -> ConvSpec | None:
        rest = _defaulted(words, "float16")
        if rest is None or not 6 <= len(numbers) <= 8 or any(len(n) > 1 for n in numbers):
            return None
        sizes = [n for (n,) in numbers]
        sizes += [1, 0][len(sizes) - 6 :]
        batch, channels, height, width, outputs, tap, stride, padding = sizes
        if min(height, width) + 2 * padding < tap:
            raise fail("the kernel is larger than the padded image")
        return cls(batch, channels, height, width, outputs, tap, stride, padding, rest[0])

    def problem(self) -> tuple[Any, Any]:
        """Of one element without gaps: the matrix product that it is."""
        import torch

        from vkinductor.codegen.tuning import convolution, gemm

        dtype = getattr(torch, self.dtype)
        if (self.tap, self.stride, self.padding) == (1, 1, 0):
            rows = self.batch * self.height * self.width
            return gemm.GEMM, gemm.problem_of(1, rows, self.outputs, self.channels, dtype, "nt")
        sizes = (self.batch, self.channels, self.height, self.width, self.outputs)
        return convolution.CONVOLUTION, convolution.problem_of(*sizes, self.tap, self.stride, self.padding, dtype)


@dataclass(frozen=True)
class DepthwiseSpec(Spec):
    """One --depthwise."""

    option = "--depthwise"
    metavar = "N,C,H,W,K[,STRIDE[,PADDING]][,DTYPE]"
    help = (
        "a depthwise convolution of N images of C channels and H x W elements with channels last and kernels of K x K "
        "(repeatable). STRIDE: 1, PADDING: K / 2, DTYPE: float16 unless given"
    )
    noun = "depthwise convolution"
    example = "32,96,56,56,7"
    dtypes = FLOATS
    least: ClassVar[dict[int, int]] = {6: 0}  # padding

    batch: int
    channels: int
    height: int
    width: int
    tap: int
    stride: int
    padding: int
    dtype: str

    @classmethod
    def of(cls, numbers: list[list[int]], words: list[str], fail: Any) -> DepthwiseSpec | None:
        rest = _defaulted(words, "float16")
        if rest is None or not 5 <= len(numbers) <= 7 or any(len(n) > 1 for n in numbers):
            return None
        sizes = [n for (n,) in numbers]
        sizes += [1, sizes[4] // 2][len(sizes) - 5 :]
        batch, channels, height, width, tap, stride, padding = sizes
        if channels < 2:
            raise fail("a single channel is no depthwise convolution: use --conv")
        if min(height, width) + 2 * padding < tap:
            raise fail("the kernel is larger than the padded image")
        return cls(batch, channels, height, width, tap, stride, padding, rest[0])

    def problem(self) -> tuple[Any, Any]:
        import torch

        from vkinductor.codegen.tuning.depthwise import DEPTHWISE, problem_of

        sizes = (self.batch, self.channels, self.height, self.width, self.tap, self.stride, self.padding)
        return DEPTHWISE, problem_of(*sizes, getattr(torch, self.dtype))


SPECS: tuple[type[Spec], ...] = (GemmSpec, LinearSpec, AttentionSpec, ConvSpec, DepthwiseSpec)
