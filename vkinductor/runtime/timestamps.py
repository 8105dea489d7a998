"""GPU timestamps around recorded commands. Owns the query pool; the stream records into its own command
buffers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vkinductor.runtime.errors import UnsupportedError, VulkanError, check

if TYPE_CHECKING:
    from vkinductor.runtime.device import Device
    from vkinductor.runtime.recorder import Recorder

# Measurements that can be open or unread at a time; later ones take up the oldest's place.
_TIMERS = 256

_ALL_COMMANDS = 0x10000
_BOTTOM_OF_PIPE = 0x2000
_RESULT_64_WAIT = 0x1 | 0x2


class Timer:
    """One measurement. `milliseconds` waits for the device, once."""

    def __init__(self, pool: TimestampPool, number: int) -> None:
        self._pool, self._number = pool, number
        self._milliseconds: float | None = None
        self._stopped = False

    def stop(self) -> None:
        """Record the end; `Stream.timed` calls it."""
        if not self._stopped:
            self._stopped = True
            self._pool.write(self._number, 1)

    @property
    def milliseconds(self) -> float:
        """Device time between start and stop, in milliseconds.

        Raises:
            VulkanError: not stopped yet, or so many later timers were started that the values are gone.
        """
        if self._milliseconds is None:
            if not self._stopped:
                raise VulkanError("this timer is still running: read it after its `with` block")
            self._milliseconds = self._pool.read(self._number)
        return self._milliseconds


class TimestampPool:
    """Pairs of timestamp queries, used in turn. The query pool is made on first use."""

    def __init__(self, device: Device, recorder: Recorder) -> None:
        self._device, self._recorder = device, recorder
        self._ffi, self._vk = device.ffi, device.vk
        self._pool: Any = None
        self._started = 0

    def start(self) -> Timer:
        """Wait (on the device) for earlier commands, then record the start of a new measurement.

        Raises:
            UnsupportedError: the device's queue has no timestamps.
        """
        if not self._device.info.limits.timestamp_valid_bits:
            raise UnsupportedError(f"{self._device.info.name} has no timestamps on its compute queue: time on the host")
        with self._recorder.lock:
            if self._pool is None:
                self._create()
            number = self._started
            self._started += 1
            command = self._recorder.command()
            self._vk.vkCmdResetQueryPool(command, self._pool, 2 * (number % _TIMERS), 2)
            # An execution barrier keeps earlier work out of the measurement.
            null = self._ffi.NULL
            self._vk.vkCmdPipelineBarrier(command, _ALL_COMMANDS, _ALL_COMMANDS, 0, 0, null, 0, null, 0, null)
            self.write(number, 0)
            return Timer(self, number)

    def write(self, number: int, end: int) -> None:
        """Record a timestamp that waits for all earlier commands."""
        with self._recorder.lock:
            command = self._recorder.command()
            index = 2 * (number % _TIMERS) + end
            self._vk.vkCmdWriteTimestamp(command, _BOTTOM_OF_PIPE, self._pool, index)

    def read(self, number: int) -> float:
        """Milliseconds between the two timestamps of a measurement."""
        with self._recorder.lock:
            if number < self._started - _TIMERS:
                raise VulkanError(f"this timer was read too late: {_TIMERS} later ones have been started")
            self._recorder.synchronize()
            values = self._ffi.new("uint64_t[2]")
            result = self._vk.vkGetQueryPoolResults(
                self._device.handle, self._pool, 2 * (number % _TIMERS), 2, 16, values, 8, _RESULT_64_WAIT
            )
            check(result, "reading timestamps")
        limits = self._device.info.limits
        ticks = (values[1] - values[0]) & ((1 << limits.timestamp_valid_bits) - 1)
        return ticks * limits.timestamp_period_ns * 1e-6

    def _create(self) -> None:
        info = self._ffi.new("VkQueryPoolCreateInfo *")
        info.sType, info.queryType, info.queryCount = 11, 2, 2 * _TIMERS
        out = self._ffi.new("VkQueryPool *")
        check(self._vk.vkCreateQueryPool(self._device.handle, info, self._ffi.NULL, out), "vkCreateQueryPool")
        self._pool = out[0]

    def close(self) -> None:
        """Destroy the query pool; the device must be idle."""
        if self._pool is not None:
            self._vk.vkDestroyQueryPool(self._device.handle, self._pool, self._ffi.NULL)
            self._pool = None
