"""Waiting for submissions as on GPUs: polled for a while, then waited for."""

from __future__ import annotations

import numpy as np
import pytest

from vkinductor.runtime import submissions
from vkinductor.runtime.errors import DEVICE_LOST, DeviceLostError

N = 1000


@pytest.fixture(params=["mapped", "staged"])
def device(request, monkeypatch):
    from vkinductor.runtime import context

    context.reset()
    monkeypatch.setenv("VKINDUCTOR_LIMITS", "host_mapping=0" if request.param == "staged" else "")
    monkeypatch.setitem(submissions.SPIN_NS, "cpu", 50_000_000)
    yield context.get()
    context.reset()


def test_reads_see_what_was_written(device, kernels):
    state = device.stream.submissions
    x, y = kernels.upload(device, np.arange(N, dtype=np.float32)), device.memory.allocate(4 * N)
    for i in range(1, 20):
        kernels.run_scale_add(device, x, y, N, scale=float(i))
        np.testing.assert_array_equal(kernels.download(device, y, N), np.arange(N, dtype=np.float32) * i)
    device.synchronize()
    assert state.completed() == state.submitted > 0


def test_a_read_after_a_mark_sees_what_was_there(device, kernels):
    x, y = kernels.upload(device, np.ones(N, np.float32)), device.memory.allocate(8 * N)
    kernels.run_scale_add(device, x, y, N, scale=2.0)
    after = device.stream.mark()
    kernels.run_scale_add(device, x, y + 4 * N, N, scale=3.0)
    out = np.zeros(N, np.float32)
    device.stream.download(out.ctypes.data, y, out.nbytes, after)
    np.testing.assert_array_equal(out, 2.0)
    np.testing.assert_array_equal(kernels.download(device, y + 4 * N, N), 3.0)
    assert device.stream.mark() == device.stream.submissions.submitted


def test_what_does_not_come_is_waited_for(device, kernels, monkeypatch):
    state = device.stream.submissions
    monkeypatch.setattr(state, "spin_ns", 1000)
    x = kernels.upload(device, np.ones(N, np.float32))
    kernels.run_scale_add(device, x, x, N, scale=2.0)
    np.testing.assert_array_equal(kernels.download(device, x, N), 2.0)
    kernels.run_scale_add(device, x, x, N, scale=2.0)
    with monkeypatch.context() as patch:
        patch.setattr(state._vk, "vkWaitSemaphores", lambda *args: DEVICE_LOST)
        patch.setattr(state._vk, "vkGetSemaphoreCounterValue", lambda *args: 0)
        with pytest.raises(DeviceLostError, match="scale_add"):
            kernels.download(device, x, N)
    state._vk.vkDeviceWaitIdle(device.handle)  # it was not lost: nothing may be in use when it is closed
