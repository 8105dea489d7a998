"""`torch.vulkan`, and what `torch.accelerator` makes of the device."""

from __future__ import annotations

import pytest
import torch

from vkinductor.runtime.errors import UnsupportedError


def test_devices() -> None:
    assert torch.vulkan.is_available()
    assert torch.vulkan.device_count() == 1
    assert torch.vulkan.current_device() == 0
    torch.vulkan.set_device(0)
    torch.vulkan.set_device("vulkan:0")
    with pytest.raises(UnsupportedError, match="vulkan:0"):
        torch.vulkan.set_device(1)
    with torch.vulkan.device(0):
        assert torch.vulkan.current_device() == 0
    torch.vulkan.init()
    assert torch.vulkan.is_initialized()
    assert torch.vulkan.get_device_name()
    assert torch.vulkan.get_device_properties().name == torch.vulkan.get_device_name(0)
    assert not torch.vulkan._is_in_bad_fork()


def test_memory() -> None:
    keep = torch.empty(1 << 20, device="vulkan")
    stats = torch.vulkan.memory_stats()
    assert stats["allocated_bytes"] >= 4 << 20
    assert stats["reserved_bytes"] >= stats["allocated_bytes"]
    assert torch.vulkan.max_memory_allocated() >= torch.vulkan.memory_allocated()
    assert torch.vulkan.max_memory_reserved() >= torch.vulkan.memory_reserved()
    big = torch.empty(256 << 20, dtype=torch.uint8, device="vulkan")
    reserved = torch.vulkan.memory_reserved()
    del big
    torch.vulkan.empty_cache()
    assert torch.vulkan.memory_reserved() < reserved
    assert keep.fill_(1)[-1].item() == 1


def test_accelerator() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 1
    assert torch.accelerator.current_accelerator() == torch.device("vulkan")
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)
    stream = torch.accelerator.current_stream()
    assert stream.device == torch.device("vulkan", 0)
    torch.accelerator.synchronize()
    torch.accelerator.synchronize("vulkan")
    torch.vulkan.synchronize()
    torch.vulkan.synchronize(0)


def test_events() -> None:
    start, end = torch.vulkan.Event(enable_timing=True), torch.vulkan.Event(enable_timing=True)
    with pytest.raises(RuntimeError, match="recorded"):
        start.elapsed_time(end)
    start.record()
    torch.ones(1000, device="vulkan").t().contiguous()
    end.record()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 0
    assert torch.vulkan.current_stream().device.type == "vulkan"


def test_fork_with_an_open_device() -> None:
    import multiprocessing

    torch.ones(2, device="vulkan")
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def child() -> None:
        try:
            torch.ones(2, device="vulkan")
            queue.put("no error")
        except RuntimeError as error:
            queue.put(f"{torch.vulkan._is_in_bad_fork()} {error}")

    process = context.Process(target=child)
    process.start()
    process.join(60)
    answer = queue.get()
    assert answer.startswith("True")
    assert "fork" in answer


def test_data_loader_workers_may_use_the_cpu() -> None:
    torch.ones(2, device="vulkan")
    loader = torch.utils.data.DataLoader(torch.arange(6.0), batch_size=2, num_workers=1)
    assert [batch.to("vulkan").cpu().tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
