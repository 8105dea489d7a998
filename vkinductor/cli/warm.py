"""`python -m vkinductor warm SCRIPT`: run a program so that its caches are full, and say what was added.

Owns running the script and the report. With `--output` the script runs on empty caches of its own, so that the file
holds what this program needs and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vkinductor.cli.output import show
from vkinductor.cli.sizes import size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command; everything behind SCRIPT is the script's."""
    add = parser.add_argument
    add("--json", type=Path, metavar="FILE", help="write the report to FILE as well ('-': stdout, instead of the text)")
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="start with empty caches and pack them into this tar file (unpack: `cache --import FILE`)",
    )
    add("script", metavar="SCRIPT", help="a Python program that compiles and calls the model")
    add("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="its arguments")


def run(arguments: argparse.Namespace) -> int:
    """Run the script, report. Returns the script's own exit code when that is not 0, and 1 after a typed error."""
    from vkinductor.runtime.errors import VulkanError

    script = Path(arguments.script)
    if not script.is_file():
        print(f"error: there is no program {script}", file=sys.stderr)
        return 1
    try:
        with _caches(own=arguments.output is not None):
            report = warm(script, arguments.arguments, arguments.output)
    except VulkanError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    code = int(report.pop("code"))
    show(report, arguments.json, describe)
    return code


def warm(script: Path, arguments: list[str], output: Path | None) -> dict[str, Any]:
    """Run ``script``, pack the caches into ``output`` if there is one, and return what was added.

    Raises CacheError when the file cannot be written; what the script raises passes through.
    """
    from vkinductor.cli import cache
    from vkinductor.codegen import cache_archive
    from vkinductor.runtime import context

    before, start = cache.gather(), time.perf_counter()
    code = run_script(script, arguments)
    seconds = time.perf_counter() - start
    if context.is_open():
        context.get().synchronize()
        context.get().pipelines.save()
    after = cache.gather()
    report: dict[str, Any] = {
        "code": code,
        "script": str(script),
        "seconds": seconds,
        "graphs": _grown(before, after, "graphs", "fxgraph", "entries"),
        "kernels": _grown(before, after, "kinds", "spirv", "entries"),
        "bytes": _total(after) - _total(before),
        "directory": after["directory"],
        "graph_directory": after["graph_directory"],
    }
    if output is not None:
        packed = cache_archive.pack(cache._store(), output)
        report["output"] = {"file": str(output), **vars(packed)}
    return report


def describe(report: dict[str, Any]) -> str:
    """The report as lines of text for people."""
    added = f"{report['graphs']} graphs, {report['kernels']} kernels, {size(max(report['bytes'], 0))}"
    lines = ["", f"{report['script']} ran for {report['seconds']:.1f} s and added {added} to the caches"]
    if "output" in report:
        lines.append(f"packed:  {report['output']['file']} (unpack with `python -m vkinductor cache --import FILE`)")
    else:
        lines += [f"kernels: {report['directory']}", f"graphs:  {report['graph_directory']}"]
    if not report["graphs"] and not report["kernels"]:
        lines.append("nothing was added: the script compiles nothing, or everything was cached already")
    return "\n".join(lines)


def run_script(script: Path, arguments: list[str]) -> int:
    """Run a program as `python SCRIPT ARGUMENTS` would; returns its exit code."""
    argv, path = sys.argv[:], sys.path[:]
    sys.argv, sys.path[0:0] = [str(script), *arguments], [str(script.resolve().parent)]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    finally:
        sys.argv, sys.path[:] = argv, path
    return 0


@contextlib.contextmanager
def _caches(own: bool) -> Iterator[None]:
    """Caches switched on; ``own``: empty ones in temporary folders."""
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor

    from vkinductor.runtime import context

    switches = inductor.patch(force_disable_caches=False, fx_graph_cache=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(switches)
        stack.enter_context(functorch.patch(enable_autograd_cache=True))
        if own:
            root = stack.enter_context(tempfile.TemporaryDirectory(prefix="vkinductor-warm-"))
            stack.callback(context.reset)  # before the folder goes: closing the device writes to it
            for name, folder in (("VKINDUCTOR_CACHE_DIR", "kernels"), ("TORCHINDUCTOR_CACHE_DIR", "graphs")):
                stack.callback(_restore, name, os.environ.get(name))
                os.environ[name] = os.path.join(root, folder)
            context.reset()  # a device that is open keeps its store
        yield


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _grown(before: dict[str, Any], after: dict[str, Any], group: str, kind: str, what: str) -> int:
    return int(after[group][kind][what] - before[group][kind][what])


def _total(report: dict[str, Any]) -> int:
    return sum(kind["bytes"] for group in ("kinds", "graphs") for kind in report[group].values())
