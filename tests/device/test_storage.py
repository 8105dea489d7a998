"""Tensors over device memory: their making, their death, and memory that does not grow."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from vkinductor.device import storage
from vkinductor.device.dtypes import DTYPES
from vkinductor.device.registry import registry
from vkinductor.runtime.errors import UnsupportedError, VulkanOutOfMemoryError


def allocated() -> int:
    return torch.vulkan.memory_allocated()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    tensor = storage.empty((2, 3), (3, 1), dtype)
    assert tensor.dtype is dtype
    assert tensor.device == torch.device("vulkan", 0)
    assert tensor.shape == (2, 3)
    assert tensor.stride() == (3, 1)
    assert tensor.untyped_storage().nbytes() == 6 * dtype.itemsize
    assert tensor.is_leaf
    assert tensor._version == 0


def test_sizes_and_strides() -> None:
    assert storage.empty((), (), torch.float32).shape == ()
    empty = storage.empty((0, 3), (3, 1), torch.float32)
    assert empty.numel() == 0
    assert storage.nbytes_range(empty) == (0, 0)
    gaps = storage.empty((2, 3), (8, 2), torch.int16)
    assert gaps.stride() == (8, 2)
    assert storage.nbytes_range(gaps) == (gaps.data_ptr(), 13 * 2)
    assert storage.nbytes_range(gaps[1]) == (gaps.data_ptr() + 16, 5 * 2)
    with pytest.raises(RuntimeError, match="cannot make a tensor"):
        storage.empty((-1,), (1,), torch.float32)
    with pytest.raises(UnsupportedError, match="dtype"):
        storage.empty((1,), (1,), torch.quint8)


def test_addresses_are_the_devices() -> None:
    tensor = torch.empty(1000, device="vulkan")
    device = registry.open()
    buffer, offset = device.memory.find(tensor.data_ptr())
    assert buffer
    assert offset >= 0
    assert tensor.data_ptr() % 256 == 0
    assert tensor[3:].data_ptr() == tensor.data_ptr() + 12


def test_inference_mode() -> None:
    with torch.inference_mode():
        assert storage.empty((2,), (1,), torch.float32).is_inference()
        assert torch.ones(2, device="vulkan").is_inference()


def test_memory_comes_back() -> None:
    gc.collect()
    before = allocated()
    tensor = torch.empty(1 << 20, device="vulkan")
    assert allocated() >= before + (4 << 20)
    view = tensor[10:20]
    del tensor
    assert allocated() >= before + (4 << 20)  # the view keeps the storage
    del view
    assert allocated() == before


def test_freed_memory_is_used_again() -> None:
    torch.vulkan.empty_cache()
    reserved = None
    for i in range(20):
        tensor = torch.empty(4 << 20, dtype=torch.uint8, device="vulkan")
        tensor.fill_(i)
        del tensor
        now = torch.vulkan.memory_reserved()
        reserved = reserved or now
        assert now <= reserved


def test_many_allocations_do_not_grow() -> None:
    def burst(n: int) -> None:
        for _ in range(n):
            storage.empty((1000,), (1,), torch.float32)

    burst(20_000)
    reserved = registry.open().memory.stats().reserved_bytes
    burst(80_000)
    assert registry.open().memory.stats().reserved_bytes <= reserved
    assert len(registry.open().ledger) < 20_000


def test_sweeps_are_amortised() -> None:
    ledger = registry.open().ledger
    kept = [storage.empty((4,), (1,), torch.float32) for _ in range(2000)]
    looks = 0
    sweep = ledger.sweep

    def counting(full: bool = True) -> int:
        nonlocal looks
        looks += len(ledger) if full else len(ledger._young)
        return sweep(full)

    ledger.sweep = counting  # type: ignore[method-assign]
    try:
        for _ in range(4000):
            storage.empty((4,), (1,), torch.float32)
            if len(ledger._young) % 50 == 49:
                ledger.on_pressure()
    finally:
        del ledger.sweep  # type: ignore[attr-defined]
    assert looks < 10 * (len(kept) + 4000)


def test_out_of_memory_sweeps_everything_first() -> None:
    device = registry.open()
    dead = torch.empty(1000, device="vulkan")
    address = dead.data_ptr()
    device.ledger.sweep()  # it is old now: a sweep of the young would not find it
    del dead
    real = device._allocate
    calls = []

    def failing(nbytes: int) -> int:
        calls.append(nbytes)
        if len(calls) == 1:
            raise VulkanOutOfMemoryError("full")
        return real(nbytes)

    device._allocate = failing  # type: ignore[method-assign]
    try:
        torch.empty(1000, device="vulkan")
    finally:
        device._allocate = real  # type: ignore[method-assign]
    assert len(calls) == 2
    with pytest.raises(Exception, match="not allocated"):
        device.memory.free(address + (1 << 40))


def test_impossible_size_raises_out_of_memory() -> None:
    with pytest.raises(VulkanOutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device="vulkan")
    assert torch.ones(3, device="vulkan").cpu().tolist() == [1, 1, 1]


def test_exception_pending_while_tensors_die() -> None:
    def fails() -> None:
        tensor = torch.ones(10, device="vulkan")
        raise KeyError(tensor.shape)

    for _ in range(10):
        with pytest.raises(KeyError):
            fails()
    storage.sweep()


def test_threads() -> None:
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(60):
                size = (seed * 7 + i) % 50 + 1
                host = torch.full((size,), float(seed * 1000 + i))
                tensor = host.to("vulkan")
                other = torch.empty(size, device="vulkan").copy_(tensor)
                assert torch.equal(other.cpu(), host)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
