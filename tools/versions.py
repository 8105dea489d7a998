"""Runs the tests of every seam to torch on its oldest and newest supported version: `python tools/versions.py`.

Owns which versions and which tests, and what is said of each. A version has an environment of its own, made by
setup_env.py as the project's is. Where one cannot be had, that is said, and is a failure with `--require`.

Builds for the CPU are enough. Where an index has none, torch brings libraries of CUDA along, 3 GB unpacked.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The ends of what pyproject.toml allows.
VERSIONS = ("2.11.0", "2.14.1")

# What leans on parts of torch, by the seam: files that are short, and from others a test for each thing that is
# replaced, subclassed or read. About a minute of one core.
TESTS = {
    "what is changed of torch": ("tests/codegen/test_compat.py",),
}

# An editable install writes beside the sources: one at a time.
_one_setup = threading.Lock()


@dataclass(frozen=True)
class Outcome:
    """What became of one version; ``log`` holds the details."""

    version: str
    said: str
    log: Path
    had: bool
    passed: bool = False


def make_environment(version: str, folder: Path) -> str | None:
    """Make the environment of ``version`` in ``folder``; returns why it cannot be had, or None."""
    command = [sys.executable, str(ROOT / "tools" / "setup_env.py"), "--dev", "--venv", str(folder / "venv")]
    with (folder / "setup.log").open("w") as log:
        variables = {**os.environ, "TORCH_VERSION": version}
        done = subprocess.run(command, env=variables, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    if done.returncode == 0:
        return None
    lines = (folder / "setup.log").read_text().strip().splitlines()
    errors = [line for line in lines if re.match(r"ERROR|setup: error", line)]
    return "; ".join(errors[:1] + errors[1:][-1:]) or (lines or ["nothing was said"])[-1]


def run(version: str, tests: Sequence[str], folder: Path, limit: float) -> Outcome:
    """Make the environment of ``version`` below ``folder`` and run ``tests`` in it, for at most ``limit`` seconds."""
    folder = folder / f"torch-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    with _one_setup:
        missing = make_environment(version, folder)
    if missing is not None:
        return Outcome(version, f"cannot be had here, NOT TESTED: {missing}", folder / "setup.log", had=False)
    caches = {"VKINDUCTOR_CACHE_DIR": "cache", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    variables = {**os.environ, **{name: str(folder / path) for name, path in caches.items()}}
    log = folder / "tests.log"
    with log.open("w") as out:
        command = [str(folder / "venv" / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        try:
            code = subprocess.run(
                command, env=variables, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, timeout=limit
            ).returncode
        except subprocess.TimeoutExpired:
            return Outcome(version, f"not through after {limit:.0f} s", log, had=True)
    return Outcome(version, summary(log.read_text()), log, had=True, passed=code == 0)


def summary(log: str) -> str:
    """pytest's last line with each count behind its name: only the last run of a CI log should look like pytest's."""
    last = (log.strip().splitlines() or ["nothing was said"])[-1]
    counts = re.findall(r"(\d+) (passed|failed|skipped|errors?|xfailed)", last)
    took = re.search(r" in ([\d.]+)s", last)
    return ", ".join(f"{kind} {count}" for count, kind in counts) + f" ({took[1]} s)" if counts and took else last


def main() -> int:
    """Exit status 1 where a test failed, or with ``--require`` where a version was not to be had."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tests", nargs="*", help="tests (default: those of the seams to torch)")
    parser.add_argument("--only", action="append", metavar="VERSION", help=f"default: {' and '.join(VERSIONS)}")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "versions", help="where environments are made")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds that the tests of a version may take")
    parser.add_argument("--jobs", type=int, default=2, help="versions at a time (default: %(default)s)")
    parser.add_argument("--require", action="store_true", help="a version that cannot be had is a failure")
    parser.add_argument("--discard", action="store_true", help="remove the environments afterwards")
    options = parser.parse_args()
    tests = options.tests or [test for group in TESTS.values() for test in group]
    folder = options.folder.resolve()

    def outcome(version: str) -> Outcome:
        result = run(version, tests, folder, options.limit)
        print(f"torch {version}: {result.said}", flush=True)
        return result

    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(outcome, options.only or VERSIONS))
    wrong = [found for found in outcomes if not found.passed and (found.had or options.require)]
    for found in wrong:
        print(f"\n{found.log}:\n{found.log.read_text()}")
    if options.discard:
        shutil.rmtree(folder)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
