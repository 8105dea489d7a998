"""`python -m vkinductor sweep`: every kernel template on this device, over sizes, dtypes and layouts."""

from __future__ import annotations

import argparse
import re
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which families, for how long, and one program again."""
    parser.add_argument("--family", default="", metavar="REGEX", help="families whose names it is found in")
    parser.add_argument("--list", action="store_true", help="show the families' names")
    parser.add_argument("--seconds", type=float, default=600.0, metavar="N", help="time in all (default 600)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="other programs, sizes and numbers for each")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default 1); 0: this one")
    parser.add_argument("--cases", type=int, default=12, metavar="N", help="sizes a program at most")
    parser.add_argument("--repeats", type=int, default=100, metavar="N", help="calls that give the same bits")
    parser.add_argument("--program", metavar="NAME", help="one program only, as a failure names it")
    parser.add_argument("--sizes", default="", metavar="m=3,n=5", help="its sizes")


def run(arguments: argparse.Namespace) -> int:
    """0: every result is right; 1: one is not, or no device can be used; 2: bad arguments."""
    from vkinductor.runtime import context
    from vkinductor.runtime.errors import VulkanError
    from vkinductor.sweep import pool
    from vkinductor.sweep.families import FAMILIES
    from vkinductor.sweep.worker import Order

    names = tuple(name for name in FAMILIES if re.search(arguments.family, name))
    if not names:
        print(f"no family matches {arguments.family!r}: there are {', '.join(FAMILIES)}", file=sys.stderr)
        return 2
    if arguments.list:
        print("\n".join(names))
        return 0
    try:
        context.get()  # else each family would say for itself what its process died of
    except VulkanError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if arguments.program:
        return _again(arguments)
    workers = max(0, min(arguments.workers, len(names)))
    share = arguments.seconds / -(-len(names) // max(1, workers))
    order = Order(names, share, arguments.seed, arguments.cases, arguments.repeats)
    found = pool.run(order, workers, lambda line: print(line, flush=True))
    failures = [f"{family.name}: {failure}" for family in found for failure in family.failures]
    cases, programs = sum(f.cases for f in found), sum(f.programs for f in found)
    print(f"{len(found)} families, {programs} programs, {cases} cases: {len(failures)} failures")
    return 1 if failures else 0


def _again(arguments: argparse.Namespace) -> int:
    from vkinductor.runtime import context
    from vkinductor.sweep.check import check, differing_bits
    from vkinductor.sweep.families import FAMILIES
    from vkinductor.sweep.program import named, parsed

    try:
        family, choice = parsed(arguments.program)
        sizes = {n: int(v) for n, _, v in (part.partition("=") for part in arguments.sizes.split(",") if part)}
        found = named(FAMILIES[family], context.get().info, choice)
    except (KeyError, ValueError) as error:
        print(f"no such program or sizes: {error}", file=sys.stderr)
        return 2
    if found is None or sizes.keys() != found.program.spans.keys():
        wanted = "no program" if found is None else f"sizes {', '.join(found.program.spans)}"
        print(f"these options make {wanted}", file=sys.stderr)
        return 2
    (outcome,) = check(found, [sizes], arguments.seed)
    print(f"{outcome.ratio:.3g} of what it may be off by {outcome.problem}")
    differing = 0 if outcome.problem else differing_bits(found, sizes, arguments.seed, arguments.repeats)
    print(f"{differing} of {arguments.repeats} calls gave other bits")
    return int(bool(outcome.problem or differing))
