"""The word in mapped memory that tells of a submission's writes, as on GPUs: polled for a while, then waited for."""

from __future__ import annotations

import numpy as np
import pytest

from vkinductor.runtime import submissions
from vkinductor.runtime.errors import DEVICE_LOST, DeviceLostError
from vkinductor.runtime.host_word import HostWord

N = 1000


@pytest.fixture(params=["mapped", "staged"])
def device(request, monkeypatch):
    from vkinductor.runtime import context

    context.reset()
    monkeypatch.setenv("VKINDUCTOR_LIMITS", "host_mapping=0" if request.param == "staged" else "")
    monkeypatch.setitem(submissions.SPIN_NS, "cpu", 50_000_000)
    device = context.get()
    device.stream.word = HostWord(device, device.stream.barriers)
    yield device
    context.reset()


def reached(device) -> int:
    return int(device.stream.word._word[0])


@pytest.mark.parametrize("first", [0, (1 << 32) - 4], ids=["", "the word turns over"])
def test_reads_see_what_was_written(device, kernels, first):
    state = device.stream.submissions
    state.submitted = state._done = first
    device.stream.word._word[0] = first & 0xFFFFFFFF
    x, y = kernels.upload(device, np.arange(N, dtype=np.float32)), device.memory.allocate(4 * N)
    for i in range(1, 20):
        kernels.run_scale_add(device, x, y, N, scale=float(i))
        np.testing.assert_array_equal(kernels.download(device, y, N), np.arange(N, dtype=np.float32) * i)
        assert reached(device) == state.submitted & 0xFFFFFFFF
    device.synchronize()
    assert state.completed() == state.submitted > first


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


def test_a_word_that_does_not_come_is_waited_for(device, kernels, monkeypatch):
    state = device.stream.submissions
    monkeypatch.setattr(device.stream.word, "_word", [0])
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
