"""Processes that compile one model at once on empty caches, one of them killed in the middle, again and again.

    python tools/cache_stress.py --rounds 50 --processes 8

Each round: empty caches; all processes start compiling at the same moment; one is killed by SIGKILL after a random
time; the others must end in time with the results of eager, and so must one more process that starts from what is
left, in which the graph comes from the cache. Prints what happened; exits with 1 at the first wrong thing. Processes
are forked from one that has imported torch and has not opened the device, so that a round takes seconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Dynamo asks CUDA about itself, which does not survive a fork

import torch
import torch._dynamo.convert_frame
import torch._functorch.aot_autograd
import torch._inductor.codegen.simd
import torch._inductor.codegen.wrapper
import torch._inductor.compile_fx

import vkinductor
import vkinductor.backend
import vkinductor.codegen.eager
import vkinductor.codegen.scheduling
import vkinductor.codegen.wrapper
import vkinductor.offload.call
from vkinductor.runtime import context

TIMEOUT = 300.0  # seconds in which a round must end: more is a deadlock


def model() -> torch.nn.Module:
    """A small network with a reduction, a matmul and a fused elementwise part."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 33), torch.nn.LayerNorm(33), torch.nn.GELU(), torch.nn.Linear(33, 7), torch.nn.Softmax(-1)
    )


def work() -> dict[str, int]:
    """Compile, run forwards and backwards, compare with eager. Returns counts; raises when results differ."""
    from torch._dynamo.utils import counters

    network, twin = model(), model()
    x = torch.randn(5, 20)
    compiled = torch.compile(network, backend="vulkan", fullgraph=True)
    result, expected = compiled(x), twin(x)
    torch.testing.assert_close(result, expected)
    result.square().sum().backward()
    expected.square().sum().backward()
    for mine, theirs in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    return {
        "kernels": vkinductor.stats()["kernels_compiled"],
        "hits": counters["aot_autograd"].get("autograd_cache_hit", 0),
    }


def child(go: int, outcome: Path) -> None:
    """A forked process: waits for the pipe `go` to close, works, writes what came of it. Never returns."""
    code = 1
    try:
        os.read(go, 1)
        text = json.dumps(work())
        context.reset()  # what a process does when it ends: caches are saved
        outcome.write_text(text)
        code = 0
    except BaseException as error:
        outcome.write_text(f"{type(error).__name__}: {error}")
    finally:
        os._exit(code)


def start(count: int, folder: Path, first: int) -> tuple[dict[int, Path], int]:
    """Fork processes that wait; returns {process: file of its outcome} and the pipe that lets them go."""
    read, write = os.pipe()
    started: dict[int, Path] = {}
    for number in range(first, first + count):
        outcome = folder / f"outcome{number}"
        process = os.fork()
        if process == 0:
            os.close(write)
            child(read, outcome)
        started[process] = outcome
    os.close(read)
    return started, write


def collect(processes: dict[int, Path], killed: int | None = None) -> list[dict[str, int]]:
    """Wait for all; the counts of those that were not killed. Raises RuntimeError for a failure or a deadlock."""
    end = time.monotonic() + TIMEOUT
    left, counts = dict(processes), []
    try:
        while left:
            for process in list(left):
                done, status = os.waitpid(process, os.WNOHANG)
                if not done:
                    continue
                outcome = left.pop(process)
                if process == killed:
                    continue
                text = outcome.read_text() if outcome.exists() else "no outcome"
                if status != 0:
                    raise RuntimeError(f"a process ended with {os.waitstatus_to_exitcode(status)}: {text}")
                counts.append(json.loads(text))
            if time.monotonic() > end:
                raise RuntimeError(f"{len(left)} processes do not end")
            time.sleep(0.005)
    finally:
        for process in left:
            os.kill(process, signal.SIGKILL)
    return counts


def one_round(processes: int, rng: random.Random, seconds: float) -> dict[str, Any]:
    """One round as above. `seconds`: the longest time before the kill. Returns what happened."""
    with tempfile.TemporaryDirectory(prefix="vkinductor-stress-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.environ["VKINDUCTOR_CACHE_DIR"] = str(folder / "vk")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
        running, go = start(processes, folder, 0)
        begin = time.monotonic()
        os.close(go)
        victim, delay = rng.choice(list(running)), rng.uniform(0, seconds)
        time.sleep(delay)
        in_time = os.waitpid(victim, os.WNOHANG)[0] == 0
        if in_time:
            os.kill(victim, signal.SIGKILL)
        else:
            running.pop(victim)
        counts = collect(running, victim if in_time else None)
        taken = time.monotonic() - begin
        last, go = start(1, folder, processes)
        os.close(go)
        (after,) = collect(last)
        if after["hits"] != 1 or after["kernels"]:
            raise RuntimeError(f"the process after the round found no whole cache: {after}")
        left = len(list((folder / "vk").rglob(".tmp-*")))
        return {"killed": in_time, "seconds": taken, "kernels": sum(c["kernels"] for c in counts), "left": left}


def main() -> int:
    """Parse the arguments and run the rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(arguments.seed)
    gc.freeze()  # what is there now stays: children need not look through it
    longest, killed, kernels, left = 3.0, 0, 0, 0
    begin = time.monotonic()
    for number in range(arguments.rounds):
        try:
            seen = one_round(arguments.processes, rng, longest)
        except RuntimeError as error:
            print(f"round {number}: {error}")
            return 1
        longest = seen["seconds"]
        killed, kernels, left = killed + seen["killed"], kernels + seen["kernels"], left + seen["left"]
        print(f"round {number}: {seen}", flush=True)
    seconds = time.monotonic() - begin
    print(
        f"{arguments.rounds} rounds of {arguments.processes} processes in {seconds:.0f} s: {killed} killed while at "
        f"work, results right, {kernels} kernels compiled by the others, {left} unfinished files left behind"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
