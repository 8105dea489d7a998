"""The stream: order, exact barriers, transfers at any offset and size, argument blocks, folded grids.

Every test runs twice: on memory as the device has it, and with mapping switched off, which is what a discrete
card without resizable BAR does.
"""

from __future__ import annotations

import numpy as np
import pytest

from vkinductor.runtime import copy_kernel
from vkinductor.runtime.abi import ArgumentLayout
from vkinductor.runtime.errors import UnsupportedError, VulkanError
from vkinductor.runtime.grid import fold
from vkinductor.runtime.pipeline import KernelSource

N = 1000


@pytest.fixture(params=["mapped", "staged"], scope="module")
def mode(request):
    return request.param


@pytest.fixture(scope="module")
def device(mode):
    from vkinductor.runtime import context

    context.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VKINDUCTOR_LIMITS", "host_mapping=0" if mode == "staged" else "")
        yield context.get()
    context.reset()


@pytest.fixture
def buffers(device):
    """A function: count -> that many fresh 4N-byte allocations, freed after the test."""
    out: list[int] = []

    def make(count: int, nbytes: int = 4 * N) -> list[int]:
        out.extend(device.memory.allocate(nbytes) for _ in range(count))
        return out[-count:]

    yield make
    for address in out:
        device.memory.free(address)


def test_mapping_is_as_asked(device, mode, buffers):
    (a,) = buffers(1)
    if mode == "staged":
        assert device.memory.host_view(a, 4) is None
    elif device.info.unified_memory:
        assert device.memory.host_view(a, 4)


def test_a_chain_of_dependent_dispatches(device, kernels, buffers, counters):
    a, b = buffers(2)
    x = np.arange(N, dtype=np.float32)
    device.stream.upload(a, x.ctypes.data, x.nbytes)
    device.stream.synchronize()
    counters.reset()
    expected = x
    for step in range(30):
        kernels.run_scale_add(device, a, b, N, 0.5, float(step))
        expected = expected * np.float32(0.5) + np.float32(step)
        a, b = b, a
    assert counters.dispatches == 30
    assert counters.barriers == 29  # each but the first reads what the one before wrote
    assert np.array_equal(kernels.download(device, a, N), expected)


def test_independent_dispatches_have_no_barriers(device, kernels, buffers, counters):
    x, *outs = buffers(11)
    data = np.arange(N, dtype=np.float32)
    device.stream.upload(x, data.ctypes.data, data.nbytes)
    device.stream.synchronize()
    counters.reset()
    for step, out in enumerate(outs):
        kernels.run_scale_add(device, x, out, N, 1.0, float(step))
    assert counters.barriers == 0
    for step, out in enumerate(outs):
        assert np.array_equal(kernels.download(device, out, N), data + step)


def test_a_barrier_that_is_asked_for(device, kernels, buffers, counters):
    x, *outs = buffers(5)
    device.stream.fill(x, 4 * N, 0)
    device.stream.synchronize()
    counters.reset()
    for step, out in enumerate(outs):
        device.stream.barrier()
        kernels.run_scale_add(device, x, out, N, 1.0, float(step))
    assert counters.barriers == len(outs)
    for step, out in enumerate(outs):
        assert np.all(kernels.download(device, out, N) == step)


def test_war_and_waw_across_many_submits(device, kernels, buffers, counters):
    a, b, c = buffers(3)
    zeros = np.zeros(N, np.float32)
    device.stream.upload(a, zeros.ctypes.data, zeros.nbytes)
    for step in range(300):
        kernels.run_scale_add(device, a, b, N, 1.0, 1.0)  # b = a + 1
        kernels.run_scale_add(device, b, a, N, 1.0, 0.0)  # a = b, which the line above still reads
        if step % 50 == 0:
            device.stream.flush()
        kernels.run_scale_add(device, a, c, N, 1.0, 0.0)
    assert counters.submits > 2
    assert np.all(kernels.download(device, c, N) == 300)


def test_halves_of_one_buffer_are_independent(device, kernels, buffers, counters):
    (a,) = buffers(1, 8 * N)
    device.stream.fill(a, 8 * N, 0)
    device.stream.synchronize()
    counters.reset()
    kernels.run_scale_add(device, a, a, N, 1.0, 1.0)
    kernels.run_scale_add(device, a + 4 * N, a + 4 * N, N, 1.0, 2.0)
    assert counters.barriers == 0
    kernels.run_scale_add(device, a + 2 * N, a + 2 * N, N, 1.0, 10.0)
    assert counters.barriers == 1
    got = kernels.download(device, a, 2 * N)
    assert np.array_equal(got, np.repeat([1, 11, 12, 2], N // 2).astype(np.float32))


@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 5, 127, 128, 129, 1000, 65537, 100_003])
@pytest.mark.parametrize("offset", [0, 1, 2, 3, 5])
def test_transfers_at_odd_sizes_and_offsets(device, buffers, nbytes, offset):
    a, b = buffers(2, nbytes + 16)
    rng = np.random.default_rng(nbytes * 8 + offset)
    data = rng.integers(0, 256, nbytes, np.uint8)
    frame = np.full(nbytes + 16, 0xEE, np.uint8)
    for address in (a, b):
        device.stream.upload(address, frame.ctypes.data, frame.nbytes)
    device.stream.upload(a + offset, data.ctypes.data, nbytes)
    device.stream.copy(b + 2 * offset + 1, a + offset, nbytes)
    back = np.zeros(nbytes + 16, np.uint8)
    device.stream.download(back.ctypes.data, b, back.nbytes)
    expected = frame.copy()
    expected[2 * offset + 1 : 2 * offset + 1 + nbytes] = data
    assert np.array_equal(back, expected)
    inner = np.zeros(nbytes, np.uint8)
    device.stream.download(inner.ctypes.data, a + offset, nbytes)
    assert np.array_equal(inner, data)


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 5, 7, 8, 11, 4097, 20_003])
@pytest.mark.parametrize("offset", [0, 1, 2, 3])
@pytest.mark.parametrize(("value", "width"), [(0, None), (0xAB, None), (0x01020304, None), (1, 4), (0x1234, 2)])
def test_fill(device, buffers, nbytes, offset, value, width, busy):
    (a,) = buffers(1, nbytes + 8)
    device.stream.fill(a, nbytes + 8, 0xEE)
    if not busy:
        device.stream.synchronize()
    device.stream.fill(a + offset, nbytes, value, width)
    size = width or (1 if value < 256 else 4)
    pattern = np.frombuffer(value.to_bytes(size, "little") * (nbytes // size + 1), np.uint8)[:nbytes]
    expected = np.full(nbytes + 8, 0xEE, np.uint8)
    expected[offset : offset + nbytes] = pattern
    back = np.zeros(nbytes + 8, np.uint8)
    device.stream.download(back.ctypes.data, a, back.nbytes)
    assert np.array_equal(back, expected)


@pytest.mark.parametrize("shift", [-2048, -5, -1, 0, 1, 4, 2048])
def test_overlapping_copy_is_as_if_the_source_had_been_read_first(device, buffers, shift):
    (a,) = buffers(1, 3 * 4096)
    data = np.arange(3 * 1024, dtype=np.uint32)
    device.stream.upload(a, data.ctypes.data, data.nbytes)
    device.stream.copy(a + 4096 + shift, a + 4096, 4096)
    expected = data.view(np.uint8).copy()
    expected[4096 + shift : 8192 + shift] = data.view(np.uint8)[4096:8192]
    back = np.zeros(3 * 4096, np.uint8)
    device.stream.download(back.ctypes.data, a, back.nbytes)
    assert np.array_equal(back, expected)


@pytest.mark.parametrize("words", [1, 255, 256, 100_000])
def test_copying_by_kernel(device, kernels, buffers, words):
    """What large copies on discrete cards do, here at any size."""
    a, b = buffers(2, 16 * words + 32)
    data = np.random.default_rng(words).integers(0, 256, 16 * words, np.uint8)
    device.stream.upload(a + 16, data.ctypes.data, data.nbytes)
    device.stream.fill(b, 16 * words + 32, 0xEE)
    device.stream._copy_by_kernel(b + 16, a + 16, 16 * words)
    back = np.zeros(16 * words + 32, np.uint8)
    device.stream.download(back.ctypes.data, b, back.nbytes)
    edge = np.full(16, 0xEE, np.uint8)
    assert np.array_equal(back, np.concatenate([edge, data, edge]))


def test_large_copies_have_any_size_and_alignment(device, buffers):
    nbytes = (3 << 20) + 5
    a, b = buffers(2, nbytes + 64)
    data = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    for src, dst in ((0, 0), (16, 48), (3, 3), (1, 16)):
        device.stream.upload(a + src, data.ctypes.data, nbytes)
        device.stream.fill(b, nbytes + 64, 0)
        device.stream.copy(b + dst, a + src, nbytes)
        back = np.zeros(nbytes + 64, np.uint8)
        device.stream.download(back.ctypes.data, b, back.nbytes)
        assert np.array_equal(back[dst : dst + nbytes], data)
        assert not back[:dst].any()
        assert not back[dst + nbytes :].any()


def test_copy_kernel_is_for_large_aligned_copies_on_discrete_cards():
    mib = 1 << 20
    assert copy_kernel.suits(256, 4096, mib, "discrete")
    assert not copy_kernel.suits(256, 4096, mib, "integrated")
    assert not copy_kernel.suits(256, 4096, mib - 16, "discrete")
    assert not copy_kernel.suits(256, 4100, mib, "discrete")


def test_transfers_are_ordered_with_dispatches(device, kernels, buffers):
    a, b, c = buffers(3)
    for step in range(20):
        data = np.full(N, step, np.float32)
        device.stream.upload(a, data.ctypes.data, data.nbytes)  # while the last round may still read a
        kernels.run_scale_add(device, a, b, N, 2.0, 1.0)
        device.stream.copy(c, b, 4 * N)
        device.stream.fill(b, 4 * N, 0)
        kernels.run_scale_add(device, c, c, N, 1.0, 1.0)
        if step % 7 == 3:
            assert np.all(kernels.download(device, c, N) == 2 * step + 2)
    assert np.all(kernels.download(device, c, N) == 2 * 19 + 2)
    assert np.all(kernels.download(device, b, N) == 0)


def test_the_host_memory_of_an_upload_may_change_at_once(device, kernels, buffers):
    a, b = buffers(2)
    data = np.ones(N, np.float32)
    kernels.run_scale_add(device, a, b, N)  # keeps a busy
    device.stream.upload(a, data.ctypes.data, data.nbytes)
    data[:] = 7
    assert np.all(kernels.download(device, a, N) == 1)


def test_large_transfers_go_in_pieces(device, buffers, mode):
    nbytes = (40 << 20) + 13  # several chunks of the staging rings, more than all of them
    (a,) = buffers(1, nbytes)
    data = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    device.stream.upload(a, data.ctypes.data, nbytes)
    back = np.zeros(nbytes, np.uint8)
    device.stream.download(back.ctypes.data, a, nbytes)
    assert np.array_equal(back, data)


def test_byte_counters(device, buffers, counters):
    (a,) = buffers(1)
    data = np.zeros(100, np.uint8)
    device.stream.upload(a, data.ctypes.data, 100)
    device.stream.download(data.ctypes.data, a, 60)
    assert (counters.h2d_bytes, counters.d2h_bytes) == (100, 60)


def test_nothing_to_do_is_nothing_done(device, kernels, buffers, counters):
    (a,) = buffers(1)
    device.stream.synchronize()
    counters.reset()
    pipeline = device.pipelines.get(kernels.scale_add())
    device.stream.dispatch(pipeline, (0, 1, 1), b"", (), ())
    device.stream.copy(a, a, 100)
    device.stream.copy(a, a + 4, 0)
    device.stream.fill(a, 0, 1)
    device.stream.flush()
    device.stream.synchronize()
    assert (counters.dispatches, counters.copies, counters.submits) == (0, 0, 0)
    assert device.stream.idle


def test_idle_tells_recorded_work(device, kernels, buffers):
    a, b = buffers(2)
    device.stream.synchronize()
    kernels.run_scale_add(device, a, b, N)
    assert not device.stream.idle
    device.stream.synchronize()
    assert device.stream.idle


@pytest.mark.parametrize("count", [1, 20, 60])
def test_arguments_larger_than_push_constants(device, kernels, buffers, count):
    """`count` pointers: y[i] = sum of x_k[i], through an argument block."""
    fields = (("n", "u32"), ("y", "ptr"), *((f"x{k}", "ptr") for k in range(count)))
    layout = ArgumentLayout(fields)
    terms = " + ".join(f"F(ARG.x{k}).v[i]" for k in range(count))
    body = f"    if (i < ARG.n) F(ARG.y).v[i] = {terms};"
    source = KernelSource(f"sum{count}", kernels.shader(layout, body, False), layout, inline_args=False)
    pipeline = device.pipelines.get(source)
    y, *xs = buffers(count + 1)
    for k, x in enumerate(xs):
        data = np.full(N, k + 1, np.float32)
        device.stream.upload(x, data.ctypes.data, data.nbytes)
    for _ in range(3):
        args = pipeline.pack(N, y, *xs)
        reads = tuple((x, 4 * N) for x in xs)
        device.stream.dispatch(pipeline, (-(-N // kernels.LOCAL), 1, 1), args, reads, ((y, 4 * N),))
    assert np.all(kernels.download(device, y, N) == count * (count + 1) / 2)


def test_many_argument_blocks_in_flight(device, kernels, buffers):
    """More blocks than the ring holds at once, each with its own values."""
    a, b = buffers(2)
    device.stream.fill(a, 4 * N, 0)
    for step in range(3000):
        kernels.run_scale_add(device, a, b, 64, 1.0, float(step % 7), inline=False)
        a, b = b, a
    total = sum(step % 7 for step in range(3000))
    assert np.all(kernels.download(device, a, 64) == total)


@pytest.mark.parametrize("n", [65535 * 64 + 1, 2_703_360])
def test_folded_grids(device, kernels, n):
    x = np.arange(n, dtype=np.float32)
    a, b = kernels.upload(device, x), device.memory.allocate(4 * n)
    device.stream.fill(b, 4 * n, 0)
    pipeline = device.pipelines.get(kernels.scale_add())
    limits = device.info.limits
    groups = fold(-(-n // kernels.LOCAL), limits)
    args = pipeline.pack(n, a, b, 1.0, 1.0)
    device.stream.dispatch(pipeline, groups, args, ((a, 4 * n),), ((b, 4 * n),))
    assert np.array_equal(kernels.download(device, b, n), x + 1)
    device.memory.free(a)
    device.memory.free(b)


def test_too_many_groups_are_refused_by_name(device, kernels, buffers):
    a, b = buffers(2)
    pipeline = device.pipelines.get(kernels.scale_add())
    groups = (1, device.info.limits.max_workgroup_count[1] + 1, 1)
    with pytest.raises(UnsupportedError, match="scale_add"):
        device.stream.dispatch(pipeline, groups, pipeline.pack(N, a, b, 1.0, 1.0), (), ())


def test_a_range_outside_of_memory_is_refused(device, buffers):
    (a,) = buffers(1)
    block = device.memory.block_of(a)
    data = np.zeros(16, np.uint8)
    with pytest.raises(VulkanError, match="run over the end"):
        device.stream.upload(block.end - 8, data.ctypes.data, 16)
    with pytest.raises(VulkanError, match="no address"):
        device.stream.fill(64, 16, 0)


def test_timestamps(device, kernels, buffers):
    if not device.info.limits.timestamp_valid_bits:
        with pytest.raises(UnsupportedError, match="timestamps"), device.stream.timed():
            pass
        return
    a, b = buffers(2)
    with device.stream.timed() as timer:
        for _ in range(10):
            kernels.run_scale_add(device, a, b, N)
            a, b = b, a
        with pytest.raises(VulkanError, match="still running"):
            _ = timer.milliseconds
    assert 0 <= timer.milliseconds < 60_000
    timers = []
    for _ in range(300):
        with device.stream.timed() as timer:
            pass
        timers.append(timer)
    assert timers[-1].milliseconds >= 0
    with pytest.raises(VulkanError, match="too late"):
        _ = timers[0].milliseconds


def test_a_submit_is_bounded_by_its_cost(device, kernels, buffers, counters):
    a, b = buffers(2)
    device.stream.synchronize()
    counters.reset()
    pipeline = device.pipelines.get(kernels.scale_add())
    args = pipeline.pack(N, a, b, 1.0, 0.0)
    for _ in range(3):
        device.stream.dispatch(pipeline, (1, 1, 1), args, (), ((b, 4 * N),), cost_flops=1 << 60)
    assert counters.submits == 3


def test_a_hundred_runs_are_bitwise_equal(device, kernels):
    n = 10_007
    x = np.random.default_rng(3).standard_normal(n).astype(np.float32)
    a, b, c = kernels.upload(device, x), device.memory.allocate(4 * n), device.memory.allocate(4 * n)
    first = None
    for _ in range(100):
        kernels.run_scale_add(device, a, b, n, 1.1, 0.3)
        kernels.run_scale_add(device, b, c, n, 0.7, -0.1)
        kernels.run_scale_add(device, c, b, n, 1.9, 0.2)
        got = kernels.download(device, b, n)
        first = got if first is None else first
        assert np.array_equal(got.view(np.uint32), first.view(np.uint32))
    for address in (a, b, c):
        device.memory.free(address)


def test_threads_share_the_stream(device, kernels):
    import threading

    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            x = np.full(N, seed, np.float32)
            a = kernels.upload(device, x)
            for step in range(40):
                b = device.memory.allocate(4 * N)
                kernels.run_scale_add(device, a, b, N, 1.0, 1.0)
                device.memory.free(a)
                a = b
                if step % 10 == 9:
                    assert np.all(kernels.download(device, a, N) == seed + step + 1)
            device.memory.free(a)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
