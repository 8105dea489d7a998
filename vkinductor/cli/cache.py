"""`python -m vkinductor cache`: what the caches on disk hold, emptying them, and shipping them as one file.

Owns what is printed. The files are the runtime's store and Inductor's cached graphs (codegen/graph_cache.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from vkinductor.cli.sizes import size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    add = parser.add_argument
    add("--json", action="store_true", help="print everything as JSON")
    add("--graphs", action="store_true", help="with --clear: Inductor's cached graphs too, of every backend")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--clear", action="store_true", help="remove this package's entries, of every process")
    one.add_argument("--export", type=Path, metavar="FILE", help="pack all that is cached, graphs too, into a tar file")
    one.add_argument(
        "--import",
        type=Path,
        metavar="FILE",
        dest="import_",
        help="add what --export packed; cached graphs are code: take them from where you would take a program",
    )


def run(arguments: argparse.Namespace) -> int:
    """Do what is asked and print it. Returns 1 after a typed error, 2 when the options do not go together."""
    from vkinductor.runtime.errors import VulkanError

    if arguments.graphs and not arguments.clear:
        print("error: --graphs goes with --clear", file=sys.stderr)
        return 2
    try:
        report = _act(arguments)
    except VulkanError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=2) if arguments.json else describe(report))
    return 0


def _act(arguments: argparse.Namespace) -> dict[str, Any]:
    from vkinductor.codegen import cache_archive

    report: dict[str, Any] = {}
    if arguments.clear:
        report["freed_bytes"] = clear(graphs=arguments.graphs)
    elif arguments.export is not None:
        report["exported"] = vars(cache_archive.pack(_store(), arguments.export)) | {"file": str(arguments.export)}
    elif arguments.import_ is not None:
        report["imported"] = vars(cache_archive.unpack(_store(), arguments.import_)) | {"file": str(arguments.import_)}
    return report | gather()


def gather() -> dict[str, Any]:
    """What the caches hold, as plain data. Hits and misses are those of all processes that have ended; Inductor does
    not keep its own. Raises CacheError for a limit that makes no sense."""
    from vkinductor.codegen import graph_cache

    store = _store()
    use = store.use()
    kinds = {
        kind: {
            "entries": stats.entries,
            "bytes": stats.bytes,
            "hits": use.get(kind, (0, 0))[0],
            "misses": use.get(kind, (0, 0))[1],
        }
        for kind, stats in store.stats().items()
    }
    graphs: dict[str, dict[str, int]] = {name: {"entries": 0, "bytes": 0} for name in graph_cache.GRAPH_FOLDERS}
    for file in graph_cache.graph_files():
        of = graphs[file.relative_to(graph_cache.folder()).parts[0]]
        of["entries"] += 1
        of["bytes"] += file.stat().st_size
    return {
        "directory": str(store.root),
        "limit_bytes": store.limit_bytes,
        "kinds": kinds,
        "graph_directory": str(graph_cache.folder()),
        "graphs": graphs,
    }


def clear(graphs: bool) -> int:
    """Remove our entries, and Inductor's graphs if ``graphs``; returns the bytes that were freed.

    Raises CacheError when something cannot be removed.
    """
    from vkinductor.codegen import graph_cache
    from vkinductor.runtime.errors import CacheError

    store = _store()
    freed = store.clear()
    left = sum(stats.entries for stats in store.stats().values())
    if left:
        raise CacheError(f"{left} entries in {store.root} cannot be removed: who owns them? ({size(freed)} were freed)")
    return freed + (graph_cache.clear() if graphs else 0)


def _store() -> Any:
    from vkinductor.runtime import env
    from vkinductor.runtime.store import DiskStore

    return DiskStore(env.cache_dir(), env.cache_limit())


def describe(report: dict[str, Any]) -> str:
    """The report as lines of text for people."""
    lines = []
    if "freed_bytes" in report:
        lines += [f"removed {size(report['freed_bytes'])}", ""]
    for what in ("exported", "imported"):
        if what in report:
            done = report[what]
            lines += [f"{what} {done['entries']} entries and {done['graphs']} graphs ({size(done['bytes'])})", ""]
    total = sum(kind["bytes"] for kind in report["kinds"].values())
    lines.append(f"{report['directory']} ({size(total)} of at most {size(report['limit_bytes'])})")
    for name, kind in report["kinds"].items():
        counts = f"{kind['hits']:>8} hits {kind['misses']:>8} misses"
        lines.append(f"  {name:<12} {kind['entries']:>6} entries {size(kind['bytes']):>12} {counts}")
    lines.append(f"{report['graph_directory']} (Inductor's, for every backend)")
    for name, graph in report["graphs"].items():
        lines.append(f"  {name:<12} {graph['entries']:>6} entries {size(graph['bytes']):>12}")
    return "\n".join(lines)
