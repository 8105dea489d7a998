"""`python -m vkinductor ops [PATTERN]`: where each operator runs, and why."""

from __future__ import annotations

import argparse
import sys
from collections import Counter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The pattern, and a filter by where."""
    parser.add_argument("pattern", nargs="?", default="*", help='of names such as "aten.sort.default": "*sort*"')
    parser.add_argument("--where", help="only those that run there: gpu, view, host, composed or cpu")


def run(arguments: argparse.Namespace) -> int:
    """Print one operator a line, then the counts; 1 when none matches."""
    from vkinductor import supported_ops

    pattern = arguments.pattern if "*" in arguments.pattern or "?" in arguments.pattern else f"*{arguments.pattern}*"
    found = {
        name: support
        for name, support in supported_ops(pattern).items()
        if arguments.where is None or support.where == arguments.where
    }
    if not found:
        print(f"no operator matches {arguments.pattern!r}", file=sys.stderr)
        return 1
    width = max(map(len, found))
    for name, support in found.items():
        print(f"{name:{width}}  {support}")
    counts = Counter(support.where for support in found.values())
    print(f"{len(found)} overloads: " + ", ".join(f"{n} {where}" for where, n in counts.most_common()))
    return 0
