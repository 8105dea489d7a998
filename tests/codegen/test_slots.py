"""Memory for outputs of recorded programs: who has it, and when it is given back."""

from __future__ import annotations

import gc

import pytest
import torch

from vkinductor.codegen.slots import OutputSlots
from vkinductor.device.registry import registry
from vkinductor.runtime.errors import VulkanOutOfMemoryError


def new_slots():
    return OutputSlots(registry.open())


@pytest.fixture
def slots():
    return new_slots()


@pytest.fixture
def layout():
    return registry.open().layout((64,), (1,), torch.float32)


def test_a_slot_that_was_taken_is_nobody_elses(slots):
    first = slots.take(256)
    slots.trim()
    second = slots.take(256)
    assert first.address != second.address
    assert len(slots) == 2


def test_a_slot_that_was_not_lent_is_taken_again(slots):
    first = slots.take(256)
    first.taken = False
    assert slots.take(256) is first


def test_a_slot_is_idle_when_its_tensor_has_died(slots, layout):
    slot = slots.take(layout.nbytes)
    tensor = slots.lend(slot, layout)
    slot.taken = False
    view = tensor[3:]
    del tensor
    assert slots.take(layout.nbytes) is not slot
    del view
    gc.collect()
    assert slots.take(layout.nbytes) is slot


def test_an_outgrown_slot_is_freed_before_a_larger_one(slots):
    slots.take(256).taken = False
    larger = slots.take(1 << 16)
    assert larger.nbytes == 1 << 16
    assert len(slots) == 1


def test_slots_that_die_free_what_is_not_lent(layout):
    gc.collect()
    memory, ledger = registry.open().memory, registry.open().ledger
    ledger.sweep()  # what other tests left
    slots = new_slots()
    tensor = slots.lend(slots.take(layout.nbytes), layout)
    slots.take(layout.nbytes)  # by a call that never came to its end
    slots.take(layout.nbytes).taken = False
    before = memory.stats().allocations
    del slots
    gc.collect()
    assert memory.stats().allocations == before - 2
    assert memory.size_of(tensor.data_ptr())
    del tensor
    ledger.sweep()
    assert memory.stats().allocations == before - 3


def test_no_memory_is_a_clear_error(slots, monkeypatch):
    def none(nbytes):
        raise VulkanOutOfMemoryError("none left")

    monkeypatch.setattr(registry.open(), "_allocate", none)
    with pytest.raises(VulkanOutOfMemoryError, match="none left"):
        slots.take(256)
    assert not len(slots)
