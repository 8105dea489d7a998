"""The allocator: on fake blocks where that is enough, on the device where memory is touched."""

from __future__ import annotations

import gc
import random
import threading
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from vkinductor.runtime.blocks import Block
from vkinductor.runtime.errors import VulkanError, VulkanOutOfMemoryError
from vkinductor.runtime.memory import (
    FIRST_LARGE_BLOCK,
    POISON_BIAS,
    SMALL,
    SMALL_BLOCK,
    Allocator,
    round_size,
)

MIB = 1 << 20


class FakeFactory:
    """Blocks out of thin air, up to a limit."""

    def __init__(self, total: int, max_block: int | None = None) -> None:
        self.left = self.heap_bytes = total
        self.max_block = max_block or total
        self.plan = SimpleNamespace(device=(0,))
        self.map_tensors = True
        self.next = 1 << 32
        self.created: list[int] = []

    def create(self, nbytes: int, memory_type: int, mapped: bool = True) -> Block:
        if nbytes > self.left or nbytes > self.max_block:
            raise VulkanOutOfMemoryError("full")
        self.left -= nbytes
        base = self.next
        self.next += nbytes  # blocks touch, which must not matter
        self.created.append(nbytes)
        return Block(object(), object(), base, base + nbytes, 0, 0, False, memory_type)

    def destroy(self, block: Block) -> None:
        self.left += block.nbytes


@pytest.fixture
def fake() -> Allocator:
    return Allocator(FakeFactory(1 << 30))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nbytes", "size"),
    [(0, 256), (1, 256), (256, 256), (257, 512), (2048, 2048), (2049, 2304), (4096, 4096), (4097, 4608)],
)
def test_size_classes(nbytes, size):
    assert round_size(nbytes) == size


def test_size_classes_waste_little():
    for nbytes in [*range(1, 20000, 37), *(random.Random(0).randrange(1, 1 << 34) for _ in range(2000))]:
        size = round_size(nbytes)
        assert size % 256 == 0
        assert 0 <= size - nbytes < max(256, min(nbytes / 8, 2 * MIB)) + 1
        assert round_size(size) == size


def test_freed_memory_is_handed_out_again(fake):
    first = fake.allocate(1000)
    fake.free(first)
    assert fake.allocate(900) == first


def test_live_ranges_never_overlap(fake):
    rng = random.Random(1)
    live: dict[int, int] = {}
    for _ in range(3000):
        if live and rng.random() < 0.5:
            address = rng.choice(list(live))
            del live[address]
            fake.free(address)
        else:
            nbytes = rng.choice([0, 1, 300, 5000, 70_000, 900_000, 3 * MIB])
            address = fake.allocate(nbytes)
            assert address % 256 == 0
            assert address not in live
            live[address] = max(nbytes, 1)
    spans = sorted(live.items())
    assert all(a + n <= b for (a, n), (b, _) in pairwise(spans))
    assert fake.stats().allocations == len(live)


def test_100k_allocations_do_not_grow_memory(fake):
    rng = random.Random(2)
    window: list[int] = []
    reserved = 0
    for step in range(100_000):
        window.append(fake.allocate(rng.randrange(1, 40_000)))
        if len(window) > 50:
            fake.free(window.pop(rng.randrange(50)))
        if step == 20_000:
            reserved = fake.stats().reserved_bytes
    assert fake.stats().reserved_bytes == reserved <= 2 * SMALL_BLOCK


def test_changing_large_sizes_reuse_the_same_blocks(fake):
    for step in range(500):
        a, b = fake.allocate(5 * MIB + step * 4096), fake.allocate(3 * MIB - step * 4096)
        fake.free(a)
        fake.free(b)
    assert fake.stats().reserved_bytes == FIRST_LARGE_BLOCK


def test_small_ranges_in_bins_are_merged_before_new_blocks_are_taken(fake):
    for size in (1000, 3000, 9000, 40_000, 300_000):
        held = [fake.allocate(size) for _ in range(SMALL_BLOCK // round_size(size) - 2)]
        for address in held:
            fake.free(address)
    assert fake.stats().reserved_bytes <= 3 * SMALL_BLOCK


def test_zero_bytes_give_unique_addresses(fake):
    a, b = fake.allocate(0), fake.allocate(0)
    assert a
    assert a != b
    fake.free(a)
    fake.free(b)


def test_double_free_and_strange_addresses_are_errors(fake):
    address = fake.allocate(10)
    with pytest.raises(VulkanError, match="not allocated"):
        fake.free(address + 256)
    fake.free(address)
    with pytest.raises(VulkanError, match="freed twice"):
        fake.free(address)
    with pytest.raises(VulkanError, match="no address"):
        fake.find(12345)


def test_out_of_memory_is_typed_names_sizes_and_is_no_dead_end():
    allocator = Allocator(FakeFactory(64 * MIB))  # type: ignore[arg-type]
    held = allocator.allocate(48 * MIB)
    with pytest.raises(VulkanOutOfMemoryError, match=f"{40 * MIB} bytes wanted.*{48 * MIB} bytes are in 1 live"):
        allocator.allocate(40 * MIB)
    allocator.free(held)
    assert allocator.allocate(40 * MIB)


def test_pressure_is_asked_before_giving_up():
    allocator = Allocator(FakeFactory(64 * MIB))  # type: ignore[arg-type]
    garbage = [allocator.allocate(16 * MIB) for _ in range(3)]
    calls = []

    def sweep() -> None:
        calls.append(len(garbage))
        while garbage:
            allocator.free(garbage.pop())

    allocator.on_pressure = sweep
    assert allocator.allocate(60 * MIB)
    assert calls[0] == 3


def test_pressure_is_amortised(fake):
    calls = []
    fake.on_pressure = lambda: calls.append(1)
    for _ in range(20_000):
        fake.allocate(4096)  # nothing is ever freed: ten blocks
    assert 5 <= len(calls) <= 12


def test_short_memory_is_swept_at_each_allocation(fake):
    calls = []
    fake.on_pressure = lambda: calls.append(1)
    with fake.short():
        kept = [fake.allocate(4096) for _ in range(10)]
        for address in kept:
            fake.free(address)
        fake.allocate(4096)  # also where there is some
    assert len(calls) >= 11
    before = len(calls)
    fake.allocate(4096)
    assert len(calls) == before


def test_garbage_is_swept_before_it_piles_up(fake):
    garbage: list[int] = []

    def sweep() -> None:
        while garbage:
            fake.free(garbage.pop())

    fake.on_pressure = sweep
    for _ in range(5000):
        garbage.append(fake.allocate(MIB // 2))
    assert fake.stats().peak_reserved_bytes <= 8 * SMALL_BLOCK


def test_empty_cache_returns_unused_blocks_after_synchronizing():
    factory = FakeFactory(1 << 30)
    allocator = Allocator(factory)  # type: ignore[arg-type]
    order = []
    allocator.synchronize = lambda: order.append("wait")
    keep, drop = allocator.allocate(100), allocator.allocate(40 * MIB)
    allocator.free(drop)
    released = allocator.empty_cache()
    assert released >= 40 * MIB
    assert order == ["wait"]
    assert allocator.stats().reserved_bytes == SMALL_BLOCK
    assert allocator.find(keep)


def test_blocks_fall_back_to_the_exact_size_when_the_heap_is_nearly_full():
    factory = FakeFactory(10 * MIB, max_block=1 << 30)
    allocator = Allocator(factory)  # type: ignore[arg-type]
    assert allocator.allocate(9 * MIB)
    assert factory.created == [9 * MIB]


def test_finalizers_may_free_in_the_middle_of_an_allocation(fake):
    class Owner:
        def __init__(self) -> None:
            self.address = fake.allocate(3 * MIB)
            self.me = self  # only the garbage collector frees it

        def __del__(self) -> None:
            fake.free(self.address)

    old = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            Owner()
            fake.free(fake.allocate(2 * MIB))
    finally:
        gc.set_threshold(*old)
    gc.collect()
    assert fake.stats().allocations == 0


def test_free_never_waits_for_a_lock_that_is_held_for_long(fake):
    address = fake.allocate(100)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with fake._lock:
            held.set()
            done.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    fake.free(address)
    done.set()
    holder.join()
    assert fake.stats().allocations == 0
    assert fake.allocate(100) == address


def test_threads(fake):
    errors = []

    def work(seed: int) -> None:
        rng, mine = random.Random(seed), []
        try:
            for _ in range(1500):
                mine.append(fake.allocate(rng.choice([100, 10_000, SMALL, 2 * MIB])))
                if len(mine) > 10:
                    fake.free(mine.pop(rng.randrange(len(mine))))
            for address in mine:
                fake.free(address)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert fake.stats().allocations == 0
    assert fake.stats().allocated_bytes == 0


# On the device.


def test_one_tebibyte_is_refused_and_the_next_call_works(device):
    with pytest.raises(VulkanOutOfMemoryError, match=str(1 << 40)):
        device.memory.allocate(1 << 40)
    address = device.memory.allocate(1 << 16)
    device.memory.free(address)


def test_interior_addresses_are_found(device):
    address = device.memory.allocate(10_000)
    buffer, offset = device.memory.find(address)
    inner, at = device.memory.find(address + 9_999)
    assert inner == buffer
    assert at == offset + 9_999
    device.memory.free(address)


def test_memory_is_not_cleared_but_kept(device, kernels):
    a = kernels.upload(device, np.arange(1000, dtype=np.float32))
    b = kernels.upload(device, np.zeros(1000, np.float32))
    assert np.array_equal(kernels.download(device, a, 1000), np.arange(1000, dtype=np.float32))
    device.memory.free(a)
    device.memory.free(b)


def test_memory_reused_while_old_commands_wait_gives_right_results(device, kernels):
    """Free at once, allocate the same address, write it: the write must come after the old reads."""
    n = 4096
    source = kernels.upload(device, np.arange(n, dtype=np.float32))
    results = []
    for step in range(20):
        temporary = device.memory.allocate(4 * n)
        out = device.memory.allocate(4 * n)
        kernels.run_scale_add(device, source, temporary, n, 1.0, float(step))
        kernels.run_scale_add(device, temporary, out, n, 2.0, 0.0)
        device.memory.free(temporary)
        results.append(out)
    for step, out in enumerate(results):
        expected = (np.arange(n, dtype=np.float32) + step) * 2
        assert np.array_equal(kernels.download(device, out, n), expected)
        device.memory.free(out)
    device.memory.free(source)


def test_the_poison_bias_is_positive_and_not_canonical():
    assert POISON_BIAS < 1 << 63
    top = POISON_BIAS >> 47
    assert top not in (0, (1 << 17) - 1)
