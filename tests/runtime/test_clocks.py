"""The two clocks: both ways of reading them agree, and timestamps become host time in spite of wrapping and drift."""

from __future__ import annotations

import time

import pytest

from vkinductor.runtime.clocks import Clocks, Sample


@pytest.fixture
def clocks(device):
    """Fresh ones, under the stream's lock."""
    if not device.info.limits.timestamp_valid_bits:
        pytest.skip("no timestamps")
    with device.stream.lock:
        made = Clocks(device)
        yield made
        device.stream.synchronize()
        made.close()


def test_a_reading_is_now(clocks):
    before = time.perf_counter_ns()
    read = clocks.read()
    after = time.perf_counter_ns()
    assert before - read.window <= read.host_ns <= after + read.window


def test_the_device_tells_the_time_that_passes(clocks):
    first = clocks.read()
    time.sleep(0.05)
    last = clocks.read()
    passed = last.host_ns - first.host_ns
    assert clocks.nanoseconds(last.ticks, first.ticks) == pytest.approx(
        passed, rel=1e-3, abs=first.window + last.window
    )


def test_the_drivers_reading_is_that_of_its_timestamps(clocks):
    if not clocks.calibrated:
        pytest.skip("no calibrated timestamps")
    read, measured = clocks.read(), min(clocks._measure() for _ in range(5))
    host = clocks.host_ns(read, read, measured.ticks)
    assert abs(host - measured.host_ns) <= measured.window / 2 + read.window + 20_000
    clocks.calibrated = False
    again = clocks.read()
    assert abs(clocks.host_ns(read, read, again.ticks) - again.host_ns) <= again.window / 2 + read.window + 20_000


def test_a_driver_that_is_wrong_is_not_believed(device, clocks, monkeypatch):
    def wrong(self):
        return Sample(10, 0, time.perf_counter_ns() - 5_000_000_000)

    monkeypatch.setattr(Clocks, "_read_calibrated", wrong)
    other = Clocks(device)
    assert not other.calibrated
    before = time.perf_counter_ns()
    assert before <= other.read().host_ns <= time.perf_counter_ns()
    other.close()


def test_without_the_extension_it_is_measured(device, clocks, monkeypatch):
    monkeypatch.setattr(device, "enabled_extensions", frozenset())
    other = Clocks(device)
    assert not other.calibrated
    other.close()


def test_timestamps_wrap_and_drift(clocks):
    clocks._bits, clocks._period = 36, 2.0
    assert clocks.nanoseconds(5, (1 << 36) - 5) == 20
    assert clocks.nanoseconds((1 << 36) - 5, 5) == -20
    # Two seconds on the host for one of the device: the device's clock is slow.
    first, last = Sample(1, 0, 0), Sample(2, 500_000_000, 2_000_000_000)
    assert clocks.host_ns(first, last, 250_000_000) == 1_000_000_000
    # Too short a time to tell: the better reading counts.
    assert clocks.host_ns(first, Sample(2, 100, 300), 50) == 100
