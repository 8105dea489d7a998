"""Compiles a program, runs it over sizes and compares; and whether it gives the same bits each time."""

from __future__ import annotations

import contextlib
import math
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._inductor import config
from torch.fx.experimental import _config
from torch.utils._pytree import tree_flatten, tree_map_only

import vkinductor

from .layouts import to_device
from .program import Named, Program
from .sizes import Sizes


@dataclass(frozen=True)
class Outcome:
    """``ratio``: the largest error in units of what was allowed. ``problem``: what was wrong, "" if nothing was.
    ``refused``: the package said that it does not do this."""

    sizes: Sizes
    ratio: float = 0.0
    problem: str = ""
    refused: bool = False


def draw(name: str, sizes: Sizes, seed: int) -> torch.Generator:
    """Random numbers of a case: the same in whatever order cases are tried."""
    text = f"{name} {sorted(sizes.items())} {seed}"
    return torch.Generator().manual_seed(zlib.crc32(text.encode()))


def check(named: Named, every: Sequence[Sizes], seed: int) -> list[Outcome]:
    """Compile once and run for ``every`` sizes: one after the other where they vary, else together."""
    program = named.program
    groups = [[sizes] for sizes in every] if program.dynamic else [list(every)]
    with _compiled(program, len(groups[0])) as run:
        return [outcome for i, group in enumerate(groups) for outcome in _group(named, group, seed, run, again=not i)]


def differing_bits(named: Named, sizes: Sizes, seed: int, repeats: int) -> int:
    """How many of ``repeats`` calls give other bits than the first."""
    program = named.program
    operands = [program.operands(sizes, draw(named.name, sizes, seed))]
    with _compiled(program, 1) as run:
        first = [_bits(x) for x in tree_flatten(run(operands))[0]]
        return sum(
            not all(torch.equal(a, _bits(b)) for a, b in zip(first, tree_flatten(run(operands))[0], strict=True))
            for _ in range(repeats - 1)
        )


def _bits(x: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.detach().cpu().contiguous().view(kinds[x.element_size()])


def _group(named: Named, group: list[Sizes], seed: int, run: Callable[..., Any], again: bool) -> list[Outcome]:
    """``again``: twice. The first call of a program dispatches its kernels, later ones replay a recording of them."""
    program = named.program
    operands = [program.operands(sizes, draw(named.name, sizes, seed)) for sizes in group]
    try:
        calls = [run(operands) for _ in range(2 if again else 1)]
    except Exception as error:
        refused = isinstance(_cause(error), vkinductor.UnsupportedError)
        return [Outcome(sizes, 0.0 if refused else math.inf, _brief(error), refused) for sizes in group]
    found = [[_judged(program, *case) for case in zip(group, operands, results, strict=True)] for results in calls]
    return [_worst(*each) for each in zip(*found, strict=True)]


def _worst(first: Outcome, replayed: Outcome | None = None) -> Outcome:
    """Of the calls with the same sizes; says so where it is the second one alone that is wrong."""
    if first.problem or replayed is None:
        return first
    if replayed.problem:
        return replace(replayed, problem=f"{replayed.problem}, in the second call alone")
    return max(first, replayed, key=lambda outcome: outcome.ratio)


def _judged(program: Program, sizes: Sizes, operands: list[Any], result: Any) -> Outcome:
    try:
        ratio = program.judge(operands, result)
    except Exception as error:
        return Outcome(sizes, math.inf, _brief(error))
    return Outcome(sizes, ratio, "" if ratio <= 1 else f"{ratio:.3g} times what it may be off by")


def _cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _brief(error: BaseException) -> str:
    cause = _cause(error)
    return f"{type(cause).__name__}: {' '.join(str(cause).split())[:300]}"


symbols: Any = _config  # its functions are put there when it is imported


@contextlib.contextmanager
def _compiled(program: Program, together: int) -> Iterator[Callable[..., Any]]:
    """What takes the operands of ``together`` sizes and gives the results of each, on the CPU."""
    torch._dynamo.reset()

    def whole(operands: list[list[Any]]) -> list[Any]:
        return [program.function(*own) for own in operands]

    compiled = torch.compile(whole, backend="vulkan", fullgraph=True, dynamic=program.dynamic)

    def run(operands: list[list[Any]]) -> list[Any]:
        results = _run(program, compiled, [to_device(own) for own in operands])
        return [tree_map_only(torch.Tensor, lambda t: t.detach().cpu(), r) for r in results]

    with (
        warnings.catch_warnings(),
        program.context(),
        # Tiles that are forced are not part of the caches' keys. Sizes that are equal at first need not stay so.
        config.patch(force_disable_caches=True),
        symbols.patch(use_duck_shape=False),
        torch._dynamo.config.patch(recompile_limit=200, accumulated_recompile_limit=1000),
        torch.autograd.set_multithreading_enabled(False),
    ):
        warnings.simplefilter("ignore")
        yield run
    torch._dynamo.reset()


def gradients(count: int, function: Callable[..., Any], operands: Sequence[Any]) -> list[Any]:
    """The result, and the gradients of the first ``count`` operands under a fixed gradient of it."""
    return _run_each(count, lambda every: [function(*own) for own in every], [list(operands)])[0]


def _run(program: Program, function: Callable[..., Any], operands: list[list[Any]]) -> list[Any]:
    if not program.gradients:
        return list(function(operands))
    return _run_each(program.gradients, function, operands)


def _run_each(count: int, function: Callable[..., Any], operands: list[list[Any]]) -> list[Any]:
    leaves = [[x.detach().requires_grad_() for x in own[:count]] for own in operands]
    results = function([[*leaf, *own[count:]] for leaf, own in zip(leaves, operands, strict=True)])
    upstream = [torch.linspace(-1, 1, r.numel(), dtype=torch.float64).view(r.shape) for r in results]
    given = [u.to(r.dtype).to(r.device) for u, r in zip(upstream, results, strict=True)]
    found = torch.autograd.grad(results, [x for own in leaves for x in own], given)
    return [[r.detach(), *found[i * count : (i + 1) * count]] for i, r in enumerate(results)]
