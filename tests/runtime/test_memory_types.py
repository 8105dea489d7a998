"""Which memory type is chosen on real layouts of heaps and types."""

from __future__ import annotations

import pytest

from vkinductor.runtime.deviceinfo import DeviceInfo, Heap, MemoryType
from vkinductor.runtime.errors import UnsupportedError
from vkinductor.runtime.memory_types import plan

GIB = 1 << 30
L, V, C, K = 1, 2, 4, 8  # device-local, host-visible, coherent, cached


def info(kind, heaps, types):
    return DeviceInfo(
        0,
        "fake",
        kind,
        heaps=tuple(Heap(size, local) for size, local in heaps),
        memory_types=tuple(MemoryType(flags, heap) for flags, heap in types),
    )


def test_cpu_driver_has_one_type_for_everything():
    found = plan(info("cpu", [(2 * GIB, True)], [(L | V | C | K, 0)]))
    assert (found.device, found.upload, found.download, found.arguments) == ((0,), 0, 0, 0)


def test_discrete_card_without_resizable_bar():
    heaps = [(24 * GIB, True), (32 * GIB, False), (256 << 20, True)]
    types = [(0, 1), (L, 0), (V | C, 1), (V | C | K, 1), (L | V | C, 2)]
    found = plan(info("discrete", heaps, types))
    assert found.device == (1,)  # neither the 256 MiB window nor host memory
    assert (found.upload, found.download, found.arguments) == (2, 3, 4)


def test_discrete_card_with_resizable_bar():
    heaps = [(80 * GIB, True), (128 * GIB, False)]
    types = [(0, 1), (L, 0), (V | C, 1), (V | C | K, 1), (L | V | C, 0)]
    found = plan(info("discrete", heaps, types))
    assert found.device == (4, 1)
    assert (found.upload, found.download, found.arguments) == (2, 3, 4)


def test_integrated_gpu_with_a_small_carve_out_uses_both_heaps():
    heaps = [(512 << 20, True), (12 * GIB, False)]
    types = [(L, 0), (L | V | C, 0), (V | C, 1), (V | C | K, 1)]
    found = plan(info("integrated", heaps, types))
    assert set(found.device[:2]) == {2, 3}
    assert found.device[0] == 3  # cached: the host reads it
    assert {0, 1} <= set(found.device)


def test_integrated_gpu_with_one_heap_prefers_cached():
    types = [(L, 0), (L | V | C, 0), (L | V | C | K, 0)]
    found = plan(info("integrated", [(16 * GIB, True)], types))
    assert found.device[0] == 2
    assert found.download == 2


def test_types_that_buffers_may_not_use_are_left_out():
    types = [(L | V | C, 0), (L | V | C, 0)]
    assert plan(info("integrated", [(GIB, True)], types), allowed=0b10).device == (1,)


@pytest.mark.parametrize("flag", [0x10, 0x20, 0x40, 0x80, 0x100])
def test_special_types_are_never_used(flag):
    types = [(L | V | C | K | flag, 0), (L, 0), (V | C, 0)]
    found = plan(info("discrete", [(GIB, True)], types))
    assert 0 not in (*found.device, found.upload, found.download, found.arguments)


def test_no_usable_type_is_an_error():
    with pytest.raises(UnsupportedError, match="memory type"):
        plan(info("discrete", [(GIB, True)], [(L, 0)]))
