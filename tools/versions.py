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

import setup_env

ROOT = Path(__file__).resolve().parent.parent

# The ends of what pyproject.toml allows.
VERSIONS = ("2.11.0", "2.14.1")

# What leans on parts of torch, by the seam: files that are short, and from others a test for each thing that is
# replaced, subclassed or read. Two minutes of one core.
TESTS = {
    "what is replaced in torch": (
        "tests/codegen/test_compat.py",
        "tests/codegen/test_generated.py",
    ),
    "the device": (
        "tests/device/test_registration.py::test_registers_names_only",
        "tests/device/test_registration.py::test_slot_taken_by_another_package",
        "tests/device/test_module.py",
        "tests/device/test_autograd.py",
        "tests/device/test_metadata.py",
    ),
    "single operators": (
        "tests/backend/test_eager_compiler.py::test_numbers_become_inputs",
        "tests/backend/test_eager_compiler.py::test_in_place_and_out",
        "tests/backend/test_eager_compiler.py::test_results_whose_size_is_data_are_made_on_the_device",
        "tests/backend/test_eager_compiler.py::test_operators_while_dynamo_traces",
        "tests/backend/test_eager_compiler.py::test_operators_inside_an_inductor_compilation",
        "tests/backend/test_eager_compiler.py::test_extern_kernels_of_a_compiled_graph",
    ),
    "graphs": (
        "tests/backend/test_cpu_tensors.py",
        "tests/backend/test_device_tensors.py::test_forward_and_training",
        "tests/backend/test_mutation.py::test_batch_norm_statistics",
        "tests/backend/test_mutation.py::test_gradient_through_a_write",
        "tests/backend/test_graph_cache.py",
    ),
    "sizes that vary": (
        "tests/codegen/test_dynamic.py",
        "tests/backend/test_mixed_and_symbolic.py::test_arithmetic_in_shapes",
        "tests/backend/test_mixed_and_symbolic.py::test_numbers_that_vary",
    ),
    "lowerings": (
        "tests/codegen/test_lowerings.py",
        "tests/codegen/passes/test_one_hot_pass.py::test_the_gradient_is_one_elementwise_kernel",
        "tests/codegen/test_unsupported.py::test_a_lacking_expression_falls_back",
        "tests/codegen/test_scans.py::test_dynamic_lengths",
        "tests/codegen/test_scans.py::test_backward",
        "tests/codegen/test_matmul.py::test_every_form_of_product",
        "tests/codegen/test_convolution.py::test_what_follows_is_stored_with_it",
        "tests/codegen/test_attention.py::test_grouped_queries_share_keys_without_copies",
        "tests/codegen/test_attention.py::test_without_this_backend_named",
        "tests/codegen/test_fused_linear.py::test_what_follows_is_fused",
        "tests/codegen/test_flex_attention.py::test_lengths_vary",
        "tests/codegen/test_flex_attention.py::test_autocast",
    ),
    "scheduling": (
        "tests/codegen/test_fusion.py",
        "tests/codegen/test_recording.py::test_one_replay_and_no_allocation",
        "tests/codegen/test_recording.py::test_cache_updates_in_place",
        "tests/codegen/test_recording.py::test_a_fallback_splits_a_program",
        "tests/codegen/test_recording.py::test_training_replays_both_directions",
        "tests/codegen/test_recording.py::test_nested_regions_are_recorded",
    ),
    "the backward": (
        "tests/backend/test_training.py::test_gradients",
        "tests/backend/test_training.py::test_graph_breaks",
        "tests/backend/test_training.py::test_checkpoint",
        "tests/backend/test_training.py::test_an_autograd_function",
    ),
    "a language model": (
        "tests/llm/test_generate_vulkan.py::test_two_hundred_tokens_compile_twice_and_record_a_few_times",
    ),
}

# An editable install writes beside the sources: one at a time.
_one_setup = threading.Lock()


@dataclass(frozen=True)
class Outcome:
    """What became of one version; ``had``: there is such a torch here; ``log`` holds the details."""

    version: str
    said: str
    log: Path
    had: bool
    passed: bool = False


def make_environment(version: str, folder: Path) -> int:
    """Make the environment of ``version`` in ``folder``; returns the exit status of setup_env.py."""
    command = [sys.executable, str(ROOT / "tools" / "setup_env.py"), "--dev", "--venv", str(folder / "venv")]
    with (folder / "setup.log").open("w") as log:
        variables = {**os.environ, "TORCH_VERSION": version}
        return subprocess.run(command, env=variables, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT).returncode


def run(version: str, tests: Sequence[str], folder: Path, limit: float) -> Outcome:
    """Make the environment of ``version`` below ``folder`` and run ``tests`` in it, for at most ``limit`` seconds."""
    folder = folder / f"torch-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    with _one_setup:
        code = make_environment(version, folder)
    if code != 0:
        log, had = folder / "setup.log", code != setup_env.NO_TORCH
        what = "no environment" if had else "cannot be had here, NOT TESTED"
        return Outcome(version, f"{what}: {complaint(log.read_text())}", log, had=had)
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


def complaint(log: str) -> str:
    """The first line of a setup's log that names an error, else its last line."""
    lines = log.strip().splitlines() or ["nothing was said"]
    return next((line for line in lines if line.startswith(("ERROR", "setup: error"))), lines[-1])


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
