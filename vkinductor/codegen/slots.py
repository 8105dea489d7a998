"""Memory for the outputs of recorded programs: kept by the program, lent to a tensor, lent again when it has died.

A tensor that the caller keeps is never overwritten: its slot is taken until its storage dies. Between `take` and `lend`
a slot is nobody else's either: an allocation for the next output may run short, and then whatever is idle is freed.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from vkinductor.device.storage import Layout, TorchDevice

_expired: Any = torch.UntypedStorage._expired
_free_weak_ref = torch.UntypedStorage._free_weak_ref


class Slot:
    """Memory for one output. `weak`: the storage that it was lent to, 0 for none. `taken`: by a call that is under way,
    which unsets it at its end.
    """

    __slots__ = ("address", "nbytes", "taken", "weak")

    def __init__(self, address: int, nbytes: int) -> None:
        self.address, self.nbytes, self.taken, self.weak = address, nbytes, False, 0

    def lent(self) -> bool:
        """Whether a storage over it is alive."""
        if self.weak and _expired(self.weak):
            _free_weak_ref(self.weak)
            self.weak = 0
        return bool(self.weak)

    def idle(self) -> bool:
        """Whether it is neither lent nor taken."""
        return not self.taken and not self.lent()


class OutputSlots:
    """The slots of one output of a program."""

    def __init__(self, device: TorchDevice) -> None:
        self._device = device
        self._slots: list[Slot] = []
        weakref.finalize(self, _give_back, device, self._slots)

    def take(self, nbytes: int) -> Slot:
        """An idle slot of at least `nbytes`, now taken; the first if it can be had, so that addresses stay the same.

        Raises:
            VulkanOutOfMemoryError: there is none and no memory for one.
        """
        for slot in self._slots:
            if slot.idle():
                if slot.nbytes >= nbytes:
                    slot.taken = True
                    return slot
                # Outgrown: the next sizes will be larger, too.
                self._slots.remove(slot)
                self._device.memory.free(slot.address)
                break
        slot = Slot(self._device.allocate(nbytes), nbytes)
        slot.taken = True
        self._slots.append(slot)
        return slot

    def lend(self, slot: Slot, layout: Layout) -> torch.Tensor:
        """A tensor over the slot's memory."""
        tensor = self._device.at(layout, slot.address)
        slot.weak = tensor.untyped_storage()._weak_ref()  # type: ignore[assignment]
        return tensor

    def trim(self) -> None:
        """Free the slots that nobody uses."""
        idle = [slot for slot in self._slots if slot.idle()]
        for slot in idle:
            self._slots.remove(slot)
            self._device.memory.free(slot.address)

    def __len__(self) -> int:
        return len(self._slots)


def _give_back(device: TorchDevice, slots: list[Slot]) -> None:
    """Free what is idle; what is lent becomes a tensor's memory like any other. Runs wherever a finalizer may."""
    for slot in slots:
        if not slot.lent():
            device.memory.free(slot.address)
        else:
            device.ledger.orphans.append((slot.weak, slot.address))
    slots.clear()
