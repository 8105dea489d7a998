"""The device's clock and the host's: reading both at one moment, and turning timestamps into host time.

Host time is that of `time.perf_counter_ns`. What is stamped, and when clocks are read, is `trace`'s.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from vkinductor.runtime.errors import check

if TYPE_CHECKING:
    from vkinductor.runtime.device import Device

# A reading is made of this many, and the one that took least time counts.
_SAMPLES = 3

# The two clocks' rates are compared over at least this time: a reading is off by some microseconds.
_DRIFT_AFTER_NS = 1_000_000_000

# The driver's own calibration is believed when it agrees with a measured one to within the latter's window and this.
_TOLERANCE_NS = 20_000

_EXTENSIONS = ("VK_KHR_calibrated_timestamps", "VK_EXT_calibrated_timestamps")
_DOMAINS = ("vkGetPhysicalDeviceCalibrateableTimeDomainsKHR", "vkGetPhysicalDeviceCalibrateableTimeDomainsEXT")
_DEVICE, _MONOTONIC = 0, 1  # VkTimeDomainKHR
_CALIBRATED_TIMESTAMP_INFO = 1000184000
_BOTTOM_OF_PIPE = 0x2000
_RESULT_64_WAIT = 0x1 | 0x2


class Sample(NamedTuple):
    """The two clocks at one moment, to within `window` ns."""

    window: int
    ticks: int
    host_ns: int


class Clocks:
    """Readings of both clocks. The caller of every method holds the stream's lock.

    calibrated: whether the driver reads the two together (VK_KHR_calibrated_timestamps or its EXT forerunner). It does
    so to within a microsecond or two; otherwise a timestamp is submitted and waited for, tens of microseconds on a GPU.
    """

    def __init__(self, device: Device) -> None:
        self._device, self._stream = device, device.stream
        self._ffi, self._vk = device.ffi, device.vk
        limits = device.info.limits
        self._period, self._bits = limits.timestamp_period_ns, limits.timestamp_valid_bits
        self._pool: Any = None
        self.calibrated = self._has_monotonic() and self._agrees()

    def read(self) -> Sample:
        """Both clocks now; waits for the device when they are not calibrated."""
        one = self._read_calibrated if self.calibrated else self._measure
        return min(one() for _ in range(_SAMPLES))

    def nanoseconds(self, ticks: int, since: int) -> float:
        """Device time from one timestamp to another, which may be the earlier one."""
        half = 1 << (self._bits - 1)
        return (((ticks - since + half) & (2 * half - 1)) - half) * self._period

    def host_ns(self, first: Sample, last: Sample, ticks: int) -> float:
        """The host's time at a timestamp between two readings."""
        if last.host_ns - first.host_ns >= _DRIFT_AFTER_NS:
            rate = (last.host_ns - first.host_ns) / self.nanoseconds(last.ticks, first.ticks)
            return first.host_ns + rate * self.nanoseconds(ticks, first.ticks)
        better = min(first, last)
        return better.host_ns + self.nanoseconds(ticks, better.ticks)

    def close(self) -> None:
        """Destroy the query pool; the device must be idle or lost."""
        if self._pool is not None:
            self._vk.vkDestroyQueryPool(self._device.handle, self._pool, self._ffi.NULL)
            self._pool = None

    def _has_monotonic(self) -> bool:
        """Whether the driver can read its clock beside the one behind perf_counter."""
        if time.get_clock_info("perf_counter").implementation != "clock_gettime(CLOCK_MONOTONIC)":
            return False
        if not self._device.enabled_extensions & set(_EXTENSIONS) or self._vk.vkGetCalibratedTimestampsKHR is None:
            return False
        query = next((f for name in _DOMAINS if (f := self._device.instance.function(name)) is not None), None)
        if query is None:
            return False
        count = self._ffi.new("uint32_t *")
        check(query(self._device.physical, count, self._ffi.NULL), "querying time domains")
        domains = self._ffi.new("VkTimeDomainKHR[]", max(count[0], 1))
        check(query(self._device.physical, count, domains), "querying time domains")
        return {_DEVICE, _MONOTONIC} <= {int(domains[i]) for i in range(count[0])}

    def _agrees(self) -> bool:
        """Whether the driver's readings are those of the timestamps it writes."""
        measured, read = min(self._measure() for _ in range(_SAMPLES)), self._read_calibrated()
        expected = read.host_ns + self.nanoseconds(measured.ticks, read.ticks)
        return abs(expected - measured.host_ns) <= measured.window / 2 + read.window + _TOLERANCE_NS

    def _read_calibrated(self) -> Sample:
        ffi = self._ffi
        infos = ffi.new("VkCalibratedTimestampInfoKHR[2]")
        for info, domain in zip(infos, (_DEVICE, _MONOTONIC), strict=True):
            info.sType, info.timeDomain = _CALIBRATED_TIMESTAMP_INFO, domain
        values, deviation = ffi.new("uint64_t[2]"), ffi.new("uint64_t *")
        result = self._vk.vkGetCalibratedTimestampsKHR(self._device.handle, 2, infos, values, deviation)
        check(result, "reading the device's clock")
        return Sample(deviation[0], values[0], values[1])

    def _measure(self) -> Sample:
        """The middle between a submit of a timestamp and its arrival."""
        ffi, vk, stream = self._ffi, self._vk, self._stream
        if self._pool is None:
            info, out = ffi.new("VkQueryPoolCreateInfo *"), ffi.new("VkQueryPool *")
            info.sType, info.queryType, info.queryCount = 11, 2, 1
            check(vk.vkCreateQueryPool(self._device.handle, info, ffi.NULL, out), "vkCreateQueryPool")
            self._pool = out[0]
        stream.synchronize()
        command = stream.command()
        vk.vkCmdResetQueryPool(command, self._pool, 0, 1)
        vk.vkCmdWriteTimestamp(command, _BOTTOM_OF_PIPE, self._pool, 0)
        before = time.perf_counter_ns()
        stream.synchronize()
        after = time.perf_counter_ns()
        value = ffi.new("uint64_t *")
        result = vk.vkGetQueryPoolResults(self._device.handle, self._pool, 0, 1, 8, value, 8, _RESULT_64_WAIT)
        check(result, "reading timestamps")
        return Sample(after - before, value[0], (before + after) // 2)
