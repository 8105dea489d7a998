"""Other programs that compute with Vulkan, beside us on the same driver, in one run.

    python -m benchmarks.peers [--peer NAME=PYTHON ...] [--rounds N] [--only REGEX] [--json FILE]

Each system runs in a process of its own, a peer under the Python that has it (``--peer``, or the environment variable
VKINDUCTOR_PEERS with the same, separated by commas): torchvulkan takes torch's one device name for such as we do. They
take turns: every round times each on every problem, so that what else the machine does meets all. A peer that is not
there is reported as absent. Results are compared with double precision.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..measure import save
from .problems import PROBLEMS

OURS = "vkinductor"
# Name -> adapter.
PEERS = {
    "torchvulkan": "torchvulkan_eager",
    "onnxruntime-webgpu": "onnxruntime_webgpu",
    "iree": "iree_vulkan",
    "ncnn": "ncnn_vulkan",
}
VARIABLE = "VKINDUCTOR_PEERS"
# Results further from double precision than this, of the largest value, are wrong.
TOLERANCE = 1e-3
# What one turn of a system shall take at least.
TURN_S = 0.1
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Row:
    """A system on a problem: seconds a call in each round, by the clock and of the processor (of all threads: on a CPU
    driver that is the work, whatever else the machine does); the error of its result; why there is nothing."""

    problem: str
    system: str
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    error: float | None = None
    note: str = ""


class Worker:
    """A system's process."""

    def __init__(self, system: str, adapter: str, python: str, folder: Path) -> None:
        self.system, self.about, self.note = system, "", ""
        command = [python, "-W", "ignore", "-m", "benchmarks.peers.worker", adapter, str(folder)]
        # Ours is found as here; a peer's Python has its own packages.
        paths = [str(ROOT), *([p for p in sys.path if p] if python == sys.executable else [])]
        self._process: subprocess.Popen[str] | None = None
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
        try:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        except OSError as error:
            self.note = f"absent: {error.strerror}"
            return
        hello = self._answer()
        self.about = hello.get("about", "")
        self.note = "" if self.about else f"absent: {hello['failed']}"

    def ask(self, **command: Any) -> dict[str, Any]:
        """The answer to a command, ``failed`` where the process has ended."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            print(json.dumps(command), file=self._process.stdin, flush=True)
        except OSError:
            return {"failed": "the process ended"}
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return dict(json.loads(line)) if line else {"failed": "the process ended"}

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()


def run(pythons: dict[str, str], problems: list[str], rounds: int) -> tuple[list[Row], dict[str, str]]:
    """Every system on ``problems`` in turns, ours first, and what each runs on. ``pythons``: of each peer."""
    systems = {OURS: ("ours", sys.executable), **{n: (PEERS[n], python) for n, python in pythons.items()}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for problem in problems:
            arrays, right = PROBLEMS[problem]
            made = arrays(np.random.default_rng(0))
            np.savez(folder / f"{problem}.npz", **made, expected=right(made))
        workers = [Worker(system, *how, folder) for system, how in systems.items()]
        try:
            rows = [turns(workers, problem, rounds) for problem in problems]
        finally:
            for worker in workers:
                worker.close()
    absent = [Row(problem, n, note="absent: no --peer") for problem in problems for n in PEERS if n not in pythons]
    return [row for found in rows for row in found] + absent, {w.system: w.about or w.note for w in workers}


def turns(workers: list[Worker], problem: str, rounds: int) -> list[Row]:
    """Each of ``workers`` on ``problem``, one turn a round."""
    found = []
    for worker in workers:
        row = Row(problem, worker.system, note=worker.note)
        print(f"{problem}: preparing {worker.system}", file=sys.stderr, flush=True)
        if not row.note:
            answer = worker.ask(prepare=problem)
            row.error, row.note = answer.get("error"), answer.get("failed", "")
        if row.error is not None and not row.error <= TOLERANCE:
            row.note = "wrong"
        found.append(row)
    pairs = [(worker, row) for worker, row in zip(workers, found, strict=True) if not row.note]
    calls = {row.system: 1 for _, row in pairs}
    for _ in range(rounds):
        for worker, row in pairs:
            answer = worker.ask(time=problem, calls=calls[row.system])
            if "failed" in answer:
                row.note = row.note or answer["failed"]
                continue
            row.wall.append(answer["wall"])
            row.cpu.append(answer["cpu"])
            calls[row.system] = max(1, min(20, int(TURN_S / answer["wall"])))
    return found


def table(rows: list[Row]) -> str:
    """Markdown: medians and least in milliseconds, and how many times as long as ours each takes."""
    ours = {row.problem: row for row in rows if row.system == OURS and row.wall and not row.note}
    lines = [
        "| problem | system | wall ms | least | CPU ms | wall / ours | CPU / ours | error |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        own = ours.get(row.problem)
        cells = [row.note, "", "", "", "", ""]
        if row.wall and not row.note:
            wall, cpu = statistics.median(row.wall), statistics.median(row.cpu)
            cells = [f"{wall * 1e3:.1f}", f"{min(row.wall) * 1e3:.1f}", f"{cpu * 1e3:.1f}", "", "", f"{row.error:.1e}"]
            if own is not None:
                cells[3] = f"{wall / statistics.median(own.wall):.2f}"
                cells[4] = f"{cpu / statistics.median(own.cpu):.2f}"
        lines.append(f"| {row.problem} | {row.system} | {' | '.join(cells)} |")
    return "\n".join(lines)


def pythons_of(given: list[str], variable: str) -> dict[str, str]:
    """Peers' interpreters of ``NAME=PYTHON`` each. Raises ValueError for a name that is no peer's."""
    pairs = [pair.partition("=") for pair in [*variable.split(","), *given] if pair]
    for name, _, python in pairs:
        if name not in PEERS or not python:
            raise ValueError(f"{name!r}: give NAME=PYTHON with a name of {', '.join(PEERS)}")
    return {name: python for name, _, python in pairs}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", metavar="NAME=PYTHON", action="append", default=[], help=f"of {', '.join(PEERS)}")
    parser.add_argument("--rounds", metavar="N", type=int, default=9, help="turns of each system (default 9)")
    parser.add_argument("--only", metavar="REGEX", default="", help="problems whose names hold it")
    parser.add_argument("--json", metavar="FILE", help="write every turn there")
    arguments = parser.parse_args(argv)
    try:
        pythons = pythons_of(arguments.peer, os.environ.get(VARIABLE, ""))
    except ValueError as error:
        parser.error(str(error))
    problems = [problem for problem in PROBLEMS if re.search(arguments.only, problem)]
    rows, about = run(pythons, problems, arguments.rounds)
    print(f"{json.dumps(about, indent=1)}\n\n{table(rows)}")
    if arguments.json:
        save(arguments.json, rows, about=about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
