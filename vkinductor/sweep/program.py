"""What is swept: families of kernels, each a product of choices that make programs, and the order to try them in."""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from vkinductor.runtime.deviceinfo import DeviceInfo

from .sizes import Sizes, Span

# axis -> name of an option -> what ``Family.make`` gets for it.
Axes = Mapping[str, Mapping[str, Any]]
Draw = torch.Generator


@dataclass(frozen=True)
class Program:
    """A function that is compiled once for some sizes.

    ``operands`` draws these, on the CPU, as they are to lie in memory. ``judge`` says from them and the results how far
    off these are, in units of what they may be. ``spans``: sizes by name. ``context``: what it is compiled inside.
    ``dynamic``: sizes vary, otherwise several share a graph with a kernel each. ``gradients``: of how many first
    operands gradients are results too. ``together``: sizes a graph at most.
    """

    function: Callable[..., Any]
    operands: Callable[[Sizes, Draw], list[Any]]
    judge: Callable[[Sequence[Any], Any], float]
    spans: Mapping[str, Span]
    context: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    dynamic: bool = False
    gradients: int = 0
    together: int = 4


@dataclass(frozen=True)
class Family:
    """Kernels of one kind. ``axes``: what may be chosen on a device; ``make``: the program of a choice of each, by the
    names of axes; None where they do not go together."""

    name: str
    axes: Callable[[DeviceInfo], Axes]
    make: Callable[..., Program | None]


@dataclass(frozen=True)
class Named:
    """A program of a family: ``name`` makes it again."""

    name: str
    program: Program = field(compare=False)


def named(family: Family, info: DeviceInfo, choice: Mapping[str, str]) -> Named | None:
    """The program of options by name."""
    axes = family.axes(info)
    program = family.make(**{axis: axes[axis][option] for axis, option in choice.items()})
    if program is None:
        return None
    return Named(f"{family.name}: " + ", ".join(f"{axis}={option}" for axis, option in choice.items()), program)


def parsed(name: str) -> tuple[str, dict[str, str]]:
    """The family and the options in the name of a program. Raises ValueError where it is none."""
    family, _, rest = name.partition(": ")
    pairs = [part.partition("=") for part in rest.split(", ") if part]
    if not all(equals for _, equals, _ in pairs):
        raise ValueError(f"not the name of a program: {name!r}")
    return family, {axis: option for axis, _, option in pairs}


def programs(family: Family, info: DeviceInfo, seed: int) -> Iterator[Named]:
    """Programs of ``family``, each once: every option early, then every pair of options, then the rest."""
    axes = {axis: list(options) for axis, options in family.axes(info).items()}
    rng = random.Random(zlib.crc32(family.name.encode()) ^ seed)
    seen: set[tuple[tuple[str, str], ...]] = set()
    singles: set[tuple[str, str]] = set()
    pairs: set[tuple[tuple[str, str], ...]] = set()
    misses = 0

    def news(choice: tuple[tuple[str, str], ...]) -> int:
        fresh = sum((a, b) not in pairs for i, a in enumerate(choice) for b in choice[i + 1 :])
        return 100 * sum(item not in singles for item in choice) + fresh

    while misses < 200:
        drawn = [tuple((axis, rng.choice(options)) for axis, options in axes.items()) for _ in range(24)]
        for choice in sorted({c for c in drawn if c not in seen}, key=lambda c: (-news(c), c)):
            seen.add(choice)
            found = named(family, info, dict(choice))
            if found is not None:
                singles.update(choice)
                pairs.update((a, b) for i, a in enumerate(choice) for b in choice[i + 1 :])
                misses = 0
                yield found
                break
        else:
            misses += 1
