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

import vkinductor

from .calls import AGAIN, FIRST, FULL, LATER, Calls, Memory, same_bits
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
    """Compile once and run for ``every`` sizes, several times (see ``calls``): one after the other where they vary, and
    then the first again, else together."""
    program = named.program
    groups = [[sizes] for sizes in every] if program.dynamic else [list(every)]
    with _compiled(program, len(groups[0])) as call:
        found = [_group(named, groups[0], seed, call, FULL)]
        found += [_group(named, group, seed, call, (LATER[i % len(LATER)],)) for i, group in enumerate(groups[1:])]
        if len(groups) > 1 and not _failed(found[0]):
            again = _group(named, groups[0], seed, call, (AGAIN,))
            found[0] = again if _failed(again) else found[0]
    return [outcome for group in found for outcome in group]


def differing_bits(named: Named, sizes: Sizes, seed: int, repeats: int) -> int:
    """How many of ``repeats`` calls give other bits than the first, wherever operands and results lie."""
    program = named.program
    operands = [program.operands(sizes, draw(named.name, sizes, seed))]
    with _compiled(program, 1) as call:
        first = call(operands, FIRST)
        return sum(not same_bits(first, call(operands, LATER[i % len(LATER)])) for i in range(repeats - 1))


def _group(
    named: Named, group: list[Sizes], seed: int, call: Callable[..., list[Any]], memories: Sequence[Memory]
) -> list[Outcome]:
    """A call with the same operands for each of ``memories``; the first one that is wrong is told."""
    program = named.program
    operands = [program.operands(sizes, draw(named.name, sizes, seed)) for sizes in group]
    found: list[Outcome] = []
    judged: list[Any] = []
    for memory in memories:
        try:
            results = call(operands, memory)
        except Exception as error:
            refused = isinstance(_cause(error), vkinductor.UnsupportedError)
            problem = _brief(error) + _alone(memory, memories)
            return [Outcome(sizes, 0.0 if refused else math.inf, problem, refused) for sizes in group]
        if found and same_bits(judged, results):
            continue
        outcomes = [_judged(program, *case) for case in zip(group, operands, results, strict=True)]
        outcomes = [replace(o, problem=o.problem and o.problem + _alone(memory, memories)) for o in outcomes]
        found = [max(pair, key=lambda o: o.ratio) for pair in zip(found or outcomes, outcomes, strict=True)]
        judged = results
        if _failed(found):
            break
    return found


def _failed(outcomes: Sequence[Outcome]) -> bool:
    return any(outcome.problem for outcome in outcomes)


def _alone(memory: Memory, memories: Sequence[Memory]) -> str:
    """Says so where calls with the same operands were right before."""
    return f", in {memory.name} alone" if memory is AGAIN or memory is not memories[0] else ""


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
def _compiled(program: Program, together: int) -> Iterator[Calls]:
    """What takes the operands of ``together`` sizes and gives the results of each, on the CPU."""
    torch._dynamo.reset()

    def whole(operands: list[list[Any]]) -> list[Any]:
        return [program.function(*own) for own in operands]

    compiled = torch.compile(whole, backend="vulkan", fullgraph=True, dynamic=program.dynamic)

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
        yield Calls(lambda operands: _run(program, compiled, operands))
    torch._dynamo.reset()


def upstream(result: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The gradient that a result is given, of its shape: -1 to 1, rounded to ``dtype``."""
    return torch.linspace(-1, 1, result.numel(), dtype=torch.float64).view(result.shape).to(dtype)


def gradients(count: int, function: Callable[..., Any], operands: Sequence[Any], dtype: torch.dtype) -> list[Any]:
    """The result, and the gradients of the first ``count`` operands under a gradient of it that is of ``dtype``,
    whatever the operands are."""
    return _run_each(count, lambda every: [function(*own) for own in every], [list(operands)], dtype)[0]


def _run(program: Program, function: Callable[..., Any], operands: list[list[Any]]) -> list[Any]:
    if not program.gradients:
        return list(function(operands))
    return _run_each(program.gradients, function, operands)


def _run_each(
    count: int, function: Callable[..., Any], operands: list[list[Any]], dtype: torch.dtype | None = None
) -> list[Any]:
    leaves = [[x.detach().requires_grad_() for x in own[:count]] for own in operands]
    results = function([[*leaf, *own[count:]] for leaf, own in zip(leaves, operands, strict=True)])
    given = [upstream(r, dtype or r.dtype).to(r.dtype).to(r.device) for r in results]
    found = torch.autograd.grad(results, [x for own in leaves for x in own], given)
    return [[r.detach(), *found[i * count : (i + 1) * count]] for i, r in enumerate(results)]
