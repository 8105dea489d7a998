"""Workers, each with its share of the families; one that dies costs the family that it was at, and is replaced."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .report import Family
from .worker import Order, sweep

COMMAND = (sys.executable, "-W", "ignore", "-m", "vkinductor.sweep.worker")
# Beyond its families' time, for starting, and for the last program of each.
_GRACE = 240.0


def run(order: Order, workers: int, say: Callable[[str], None]) -> list[Family]:
    """Sweep ``order``'s families by so many processes, by this one if 0; ``say`` gets a line when there is one."""
    shares = [order.families[i::workers] for i in range(workers)]
    found: dict[str, Family] = {name: Family(name, order.seed) for name in order.families}
    if workers == 0:
        _heard(sweep(order), found, say)
    lock = threading.Lock()

    def locked(line: str) -> None:
        with lock:
            say(line)

    threads = [threading.Thread(target=_share, args=(order, share, found, locked)) for share in shares if share]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[name] for name in order.families]


def _share(order: Order, families: Sequence[str], found: dict[str, Family], say: Callable[[str], None]) -> None:
    left = list(families)
    while left:
        at = _worker(order, left, found, say)
        if at is None:
            return
        left = left[left.index(at) + 1 :]


def _heard(
    messages: Iterable[dict[str, Any]], found: dict[str, Family], say: Callable[[str], None]
) -> tuple[str, str] | None:
    """Note what a worker says; the family and the program that it was at last."""
    at, program = "", "its start"
    for message in messages:
        at, program = message.get("family", at), message.get("begin", program)
        for failure in found[at].add(message):
            say(f"{at}: {failure}")
        if "end" in message:
            say(found[at].line())
    return (at, program) if at else None


def _worker(order: Order, families: Sequence[str], found: dict[str, Family], say: Callable[[str], None]) -> str | None:
    """The family at which the process died; None where it did not."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        limit = threading.Timer(len(families) * (order.seconds + _GRACE), process.kill)
        limit.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            json.dump({**vars(order), "families": list(families)}, process.stdin)
            process.stdin.close()
            at, program = _heard(map(json.loads, process.stdout), found, say) or (families[0], "its start")
            if process.wait() == 0:
                return None
            errors.seek(0)
            say(f"{found[at].died(program)} (status {process.returncode})\n{errors.read()[-2000:]}")
            say(found[at].line())
            return at
        finally:
            limit.cancel()
            if process.poll() is None:
                process.kill()
