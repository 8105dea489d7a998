"""torch.profiler: the device's commands stand in the exported Chrome trace, beside and on the clock of the CPU's."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, schedule

from vkinductor.device.registry import registry
from vkinductor.runtime import trace
from vkinductor.runtime.errors import UnsupportedError

# A table is of one device: of this one, also where CUDA could be profiled.
HERE = (ProfilerActivity.CPU, ProfilerActivity.PrivateUse1)

# How far the calibration may be off, in microseconds: half of a submit and its wait, on a shared machine.
SLACK = 2_000


@pytest.fixture(autouse=True)
def timestamps() -> None:
    """What tracing needs."""
    if not registry.open().runtime.info.limits.timestamp_valid_bits:
        pytest.skip("no timestamps")


def work() -> None:
    """A dispatch, by way of a copy that a kernel of the device makes, and a wait."""
    x = torch.zeros(64, 64, device="vulkan")
    with torch.profiler.record_function("launch"):
        x.t().contiguous()
        x[::2].fill_(1)
    registry.open().stream.synchronize()


def events(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]


def on_device(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The device's kernels and transfers."""
    (pid,) = {e["pid"] for e in found if e["name"] == "process_name" and "vulkan: " in e["args"]["name"]}
    return [e for e in found if e["ph"] == "X" and e["pid"] == pid]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_kernels_are_exported_on_torchs_clock(tmp_path: Path, name: str) -> None:
    work()  # whatever is compiled is compiled
    with profile() as prof:
        work()
    assert registry.open().stream.tracer is None
    prof.export_chrome_trace(str(tmp_path / name))
    found = events(tmp_path / name)
    ours = on_device(found)
    assert any(e["cat"] == "kernel" for e in ours)
    (span,) = (e for e in found if e.get("cat") == "Trace")
    (launch,) = (e for e in found if e["name"] == "launch" and e.get("cat") == "user_annotation")
    kernels = [e for e in ours if e["cat"] == "kernel"]
    assert all(e["ts"] >= launch["ts"] - SLACK for e in kernels)
    assert all(e["ts"] + e["dur"] <= span["ts"] + span["dur"] + SLACK for e in ours)
    assert "launch" in prof.key_averages().table()
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_tables_have_the_devices_times() -> None:
    work()
    with profile(activities=HERE) as prof:
        work()
    ours = [e for e in prof.events() if e.device_type == DeviceType.PrivateUse1]
    names = {e.name for e in ours}
    assert ours
    averages = {e.key: e for e in prof.key_averages() if e.device_type == DeviceType.PrivateUse1}
    assert set(averages) == names
    assert sum(e.count for e in averages.values()) == len(ours)
    elapsed = sum(e.time_range.elapsed_us() for e in ours)
    assert sum(e.self_device_time_total for e in averages.values()) == pytest.approx(elapsed)
    (launch,) = (e for e in prof.events() if e.name == "launch" and e.device_type == DeviceType.CPU)
    assert min(e.time_range.start for e in ours) >= launch.time_range.start - SLACK
    text = prof.key_averages().table(sort_by="self_device_time_total")
    assert "Self VULKAN" in text
    assert "VULKAN time total" in text
    assert all(name[:40] in text for name in names)


def test_a_table_of_the_cpu_alone_has_no_column_of_the_device() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        work()
    assert "VULKAN" not in prof.key_averages().table()


def test_accumulated_cycles_are_all_in_the_table() -> None:
    def count(cycles: int) -> int:
        cycle = schedule(wait=0, warmup=1, active=1, repeat=cycles)
        with profile(activities=HERE, schedule=cycle, acc_events=True) as prof:
            for _ in range(2 * cycles):
                work()
                prof.step()
        return sum(e.device_type == DeviceType.PrivateUse1 for e in prof.events())

    work()
    assert count(2) == 2 * count(1) > 0


def test_a_profile_of_the_cpu_alone(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        work()
        assert registry.open().stream.tracer is None
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    assert not any(e.get("cat") == "kernel" for e in events(tmp_path / "trace.json"))


def test_a_schedule_keeps_the_cycle_that_is_saved(tmp_path: Path) -> None:
    counts = []

    def ready(prof: Any) -> None:
        prof.export_chrome_trace(str(tmp_path / "trace.json"))
        counts.append(len(on_device(events(tmp_path / "trace.json"))))

    with profile(schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=ready) as prof:
        for _ in range(8):
            work()
            prof.step()
    assert len(counts) == 2
    assert counts[0] == counts[1] > 0
    assert registry.profiles == []


def test_a_device_that_cannot_be_traced_leaves_the_profile_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(device: Any) -> None:
        raise UnsupportedError("no timestamps")

    monkeypatch.setattr(trace, "start", start)
    with pytest.warns(RuntimeWarning, match="of the CPU alone: no timestamps"), profile() as prof:
        work()
    assert "launch" in prof.key_averages().table()
    assert registry.profiles == []


def test_a_failing_body_ends_the_trace() -> None:
    with pytest.raises(RuntimeError, match="on purpose"), profile():
        raise RuntimeError("on purpose")
    assert registry.open().stream.tracer is None


def test_the_device_may_be_opened_within_the_profile(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    code = f"""
import torch, vkinductor
from vkinductor.device.registry import registry
from vkinductor.runtime import trace
from vkinductor.runtime.errors import UnsupportedError
with torch.profiler.profile() as prof:
    assert registry.current() is None
    y = torch.ones(64, device="vulkan") + 1
prof.export_chrome_trace({str(path)!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert on_device(events(path))
