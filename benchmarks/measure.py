"""What the benchmarks share: warm-up, medians, what was counted, tables, JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# A GPU that was idle for a second runs 2-4 times slow at first (H100).
WARM_UP_S = 0.3


@dataclass
class Row:
    """One line of a table. Times are medians in microseconds, None where they were not measured.

    host: of a call on an idle device, until it returns. wall: of a call among many, the device's work included.
    latency: of a call and the wait for its result. device: of a call by the device's own timestamps. kernels: that a
    call launches, where they can be counted. counts: per call. note: why there is nothing.
    """

    workload: str
    system: str
    host: float | None = None
    wall: float | None = None
    latency: float | None = None
    device: float | None = None
    kernels: float | None = None
    counts: dict[str, float] = field(default_factory=dict)
    note: str = ""


def measure(
    workload: str,
    system: str,
    call: Callable[[], Any],
    synchronize: Callable[[], Any],
    counters: Callable[[], dict[str, Any]] | None = None,
    seconds: float = 1.0,
) -> Row:
    """Times ``call``, which is warm after a few calls, and what it counts in the steady state."""
    for _ in range(6):
        call()
    synchronize()
    start, n = time.perf_counter(), 0
    while time.perf_counter() - start < WARM_UP_S or n < 3:
        call()
        n += 1
    synchronize()
    calls = max(5, min(2000, int(n * seconds / (time.perf_counter() - start))))
    before = counters() if counters else {}
    walls = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(max(1, calls // 5)):
            call()
        synchronize()
        walls.append((time.perf_counter() - start) / max(1, calls // 5))
    done = 5 * max(1, calls // 5)
    after = counters() if counters else {}
    hosts, latencies = [], []
    for _ in range(min(calls, 300)):
        synchronize()
        start = time.perf_counter()
        call()
        hosts.append(time.perf_counter() - start)
        synchronize()
        latencies.append(time.perf_counter() - start)
    counts = {k: (after[k] - before[k]) / done for k in after if isinstance(after[k], int)}
    micro = 1e6
    return Row(
        workload,
        system,
        statistics.median(hosts) * micro,
        statistics.median(walls) * micro,
        statistics.median(latencies) * micro,
        kernels=counts.get("dispatches"),
        counts={k: v for k, v in counts.items() if v},
    )


def table(rows: Sequence[Row]) -> str:
    """The rows as text; ratios are to the first row of the same workload that was measured."""
    lines = [
        f"{'workload':22} {'system':34} {'host us':>9} {'/kernel':>8} {'wall us':>10} {'latency':>10} {'device':>9} "
        f"{'wall/1st':>8}  per call"
    ]
    first: dict[str, float] = {}
    for row in rows:
        if row.wall is None or row.host is None or row.latency is None:
            lines.append(f"{row.workload:22} {row.system:34} {row.note}")
            continue
        base = first.setdefault(row.workload, row.wall)
        counts = " ".join(f"{k} {v:.4g}" for k, v in row.counts.items())
        each = f"{row.host / row.kernels:8.2f}" if row.kernels else f"{'-':>8}"
        device = f"{row.device:9.1f}" if row.device is not None else f"{'-':>9}"
        lines.append(
            f"{row.workload:22} {row.system:34} {row.host:9.1f} {each} {row.wall:10.1f} {row.latency:10.1f} {device} "
            f"{row.wall / base:8.2f}  {counts} {row.note}"
        )
    return "\n".join(lines)


def save(path: str, rows: Sequence[Any], **about: Any) -> None:
    """Write rows and what they were measured on as JSON."""
    report = {"python": platform.python_version(), "cpus": os.cpu_count(), **about, "rows": [asdict(r) for r in rows]}
    temporary = Path(f"{path}.tmp")
    temporary.write_text(json.dumps(report, indent=1))
    temporary.replace(path)


def load(path: str) -> list[Row]:
    """The rows of a file that `save` wrote."""
    return [Row(**row) for row in json.loads(Path(path).read_text())["rows"]]
