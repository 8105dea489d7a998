"""One system's process: `PYTHON -m benchmarks.peers.worker ADAPTER FOLDER`, with commands and answers as lines of JSON.

An adapter is a module of this package with ``about() -> str``, its versions, and ``prepare(problem, arrays)``, which
returns a call that computes and waits, and a function from its result to a NumPy array. It may raise ImportError as a
whole, or anything for a problem that it cannot do.

    {"prepare": PROBLEM}           -> {"error": of the largest value} or {"failed": why}
    {"time": PROBLEM, "calls": n}  -> {"wall": seconds a call, "cpu": of all threads, seconds a call}
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .problems import error


def first_line(exception: Exception) -> str:
    """Its type and the beginning of what it says."""
    lines = str(exception).strip().splitlines() or [""]
    return f"{type(exception).__name__}: {lines[0][:160]}"


def timed(call: Callable[[], Any], calls: int) -> dict[str, float]:
    """Means over so many calls."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        call()
    return {"wall": (time.perf_counter() - wall) / calls, "cpu": (time.process_time() - cpu) / calls}


def answer(adapter: Any, folder: Path, command: dict[str, Any], calls: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """What a command gives; prepared ``calls`` are kept."""
    if "time" in command:
        return timed(calls[command["time"]], command["calls"])
    problem = command["prepare"]
    with np.load(folder / f"{problem}.npz") as stored:
        arrays = dict(stored)
    expected = arrays.pop("expected")
    try:
        call, fetch = adapter.prepare(problem, arrays)
        result = error(fetch(call()), expected)
        timed(call, 2)
    except Exception as exception:
        return {"failed": first_line(exception)}
    calls[problem] = call
    return {"error": result}


def main() -> None:
    """Answer commands until there are none."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    # What a peer prints must not come between answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=answers, flush=True)

    try:
        adapter = importlib.import_module(f"benchmarks.peers.{name}")
        say({"about": adapter.about()})
    except Exception as exception:
        say({"failed": first_line(exception)})
        return
    calls: dict[str, Callable[[], Any]] = {}
    for line in sys.stdin:
        say(answer(adapter, folder, json.loads(line), calls))


if __name__ == "__main__":
    main()
