"""Traces: every command with its name, in order, on the host's clock; nothing is left when they end."""

from __future__ import annotations

import gzip
import json
import time

import numpy as np
import pytest

from vkinductor.runtime import chrome_trace, trace
from vkinductor.runtime.deviceinfo import DeviceInfo
from vkinductor.runtime.errors import UnsupportedError

N = 1000

# How far the calibration may be off: half of a submit and its wait, on a shared machine.
SLACK_NS = 2_000_000


@pytest.fixture
def buffers(device):
    """Two allocations of N floats."""
    if not device.info.limits.timestamp_valid_bits:
        pytest.skip("no timestamps")
    out = [device.memory.allocate(4 * N) for _ in range(2)]
    for address in out:
        device.stream.fill(address, 4 * N, 0)
    yield out
    for address in out:
        device.memory.free(address)


def test_commands_are_traced_in_order_within_the_call(device, kernels, buffers):
    a, b = buffers
    kernels.run_scale_add(device, a, b, N)  # before the trace: not in it
    traced = trace.start(device)
    begin = time.perf_counter_ns()
    for _ in range(5):
        kernels.run_scale_add(device, a, b, N)
    device.stream.copy(a, b, 4 * N)
    device.stream.synchronize()
    end = time.perf_counter_ns()
    trace.stop(traced)
    kernels.run_scale_add(device, a, b, N)
    events = list(traced.events)
    names = [e.name for e in events]
    assert names[:5] == ["scale_add"] * 5
    assert {e.category for e in events[:5]} == {trace.KERNEL}
    assert len(events) in (5, 6)  # mapped memory may be copied by the host
    last = 0
    for event in events:
        assert event.duration_ns >= 0
        assert event.begin_ns >= last  # one after another
        last = event.begin_ns + event.duration_ns
    assert begin - SLACK_NS <= events[0].begin_ns
    assert last <= end + SLACK_NS


def test_transfers_are_traced_by_kind(device, kernels, buffers):
    a, b = buffers
    traced = trace.start(device)
    kernels.run_scale_add(device, a, b, N)  # now `a` is in use: the host may not fill it
    device.stream.fill(a, 4 * N, 0)
    trace.stop(traced)
    assert [(e.name, e.category) for e in traced.events] == [("scale_add", trace.KERNEL), ("fill", trace.FILL)]


def test_more_commands_than_a_pool_holds(device, kernels, buffers, monkeypatch):
    monkeypatch.setattr(trace, "_COMMANDS", 8)
    a, b = buffers
    created = []
    create = trace.Tracer._create
    monkeypatch.setattr(trace.Tracer, "_create", lambda self, n: created.append(n) or create(self, n))
    traced = trace.start(device)
    for i in range(300):
        kernels.run_scale_add(device, a, b, N)
        a, b = b, a
        if i % 50 == 0:
            device.stream.synchronize()
    trace.stop(traced)
    assert len(traced.events) == 300
    begins = [e.begin_ns for e in traced.events]
    assert begins == sorted(begins)
    assert len(created) < 20  # pools are read and used again


def test_two_traces_each_have_their_own(device, kernels, buffers):
    a, b = buffers
    first = trace.start(device)
    kernels.run_scale_add(device, a, b, N)
    second = trace.start(device, limit=2)
    for _ in range(3):
        kernels.run_scale_add(device, b, a, N)
    trace.stop(second)
    assert device.stream.tracer is not None
    kernels.run_scale_add(device, a, b, N)
    trace.stop(first)
    trace.stop(first)  # idempotent
    assert device.stream.tracer is None
    assert len(second.events) == 2  # the last ones
    assert len(first.events) == 5


def test_results_are_the_same(device, kernels, buffers):
    a, b = buffers
    traced = trace.start(device)
    x = np.arange(N, dtype=np.float32)
    device.stream.upload(a, x.ctypes.data, x.nbytes)
    kernels.run_scale_add(device, a, b, N, 2.0, 1.0)
    kernels.run_scale_add(device, b, a, N, 2.0, 1.0)
    got = kernels.download(device, a, N)
    trace.stop(traced)
    assert np.array_equal(got, 4 * x + 3)


def test_a_trace_outlives_its_device(fresh_device, kernels):
    device = fresh_device()
    if not device.info.limits.timestamp_valid_bits:
        pytest.skip("no timestamps")
    traced = trace.start(device)
    fresh_device()
    trace.stop(traced)
    assert not traced.events


def test_no_timestamps(device, monkeypatch):
    import dataclasses

    limits = dataclasses.replace(device.info.limits, timestamp_valid_bits=0)
    info: DeviceInfo = dataclasses.replace(device.info, limits=limits)
    monkeypatch.setattr(device, "info", info)
    with pytest.raises(UnsupportedError, match="no timestamps"):
        trace.start(device)
    assert device.stream.tracer is None


def test_files_are_replaced_as_a_whole(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("old")
    chrome_trace.replace(str(path), '{"a": 1}')
    assert json.loads(path.read_text()) == {"a": 1}
    zipped = tmp_path / "t.json.gz"
    chrome_trace.replace(str(zipped), "{}")
    assert gzip.decompress(zipped.read_bytes()) == b"{}"
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(OSError, match="folder"):
        chrome_trace.replace(str(tmp_path / "folder.json"), "{}")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.json", "t.json", "t.json.gz"]
