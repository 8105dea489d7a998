"""Device copies of CPU storages, made once and made again when the CPU side changes in place.

A mirror holds a whole storage, so that inputs which alias each other on the CPU alias each other on the device.
It is keyed on the storage and valid for one version counter; it goes when the CPU storage goes. Writing through
``tensor.data`` does not move the version counter and so is not seen (nor is it by autograd).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef

DEVICE = torch.device("vulkan", 0)

# A view that is this much smaller than its storage travels alone.
_SPARSE_VIEW = 4

Place = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]


@dataclass
class Mirror:
    """One storage on the device: its bytes, the CPU version they came from, and the views made of them."""

    source: StorageWeakRef
    version: int
    nbytes: int
    data: torch.Tensor
    views: dict[Place, torch.Tensor] = field(default_factory=dict)

    def view(self, like: torch.Tensor) -> torch.Tensor:
        """The device tensor that sees what ``like`` sees on the CPU."""
        place = (like.dtype, tuple(like.shape), like.stride(), like.storage_offset())
        view = self.views.get(place)
        if view is None:
            view = torch.empty(0, dtype=like.dtype, device=DEVICE)
            view.set_(self.data.untyped_storage(), place[3], place[1], place[2])
            self.views[place] = view
        return view


class Mirrors:
    """All mirrors of the process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: dict[int, Mirror] = {}
        self._sweep_at = 64

    def get(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` (CPU, strided) on the device: the same sizes, strides and aliasing; detached."""
        source = tensor.detach()
        storage = source.untyped_storage()
        nbytes = storage.nbytes()
        with self._lock:
            mirror = self._entries.get(storage._cdata)
            if mirror is not None and mirror.source.expired():
                mirror = None
            if mirror is not None and mirror.version == source._version and mirror.nbytes == nbytes:
                return mirror.view(source)
            if mirror is None and nbytes > _SPARSE_VIEW * source.nbytes:
                return _alone(source)
            self._sweep()
            mirror = Mirror(StorageWeakRef(storage), source._version, nbytes, _bytes(storage).to(DEVICE))
            self._entries[storage._cdata] = mirror
            return mirror.view(source)

    def write_back(self, tensor: torch.Tensor, mirror: torch.Tensor) -> None:
        """Copy what a graph wrote into ``mirror`` to ``tensor``; the mirror stays valid."""
        with torch.no_grad():
            tensor.detach().copy_(mirror)
        with self._lock:
            entry = self._entries.get(tensor.untyped_storage()._cdata)
            if entry is not None and entry.data.untyped_storage()._cdata == mirror.untyped_storage()._cdata:
                entry.version = tensor._version

    def clear(self) -> None:
        """Forget all mirrors (their memory goes when nothing else holds it)."""
        with self._lock:
            self._entries.clear()

    def _sweep(self) -> None:
        if len(self._entries) < self._sweep_at:
            return
        self._entries = {key: m for key, m in self._entries.items() if not m.source.expired()}
        self._sweep_at = max(64, 2 * len(self._entries))


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def _alone(source: torch.Tensor) -> torch.Tensor:
    """A copy of one tensor with its strides (a view with gaps is filled only where it has elements)."""
    copy = torch.empty_strided(source.size(), source.stride(), dtype=source.dtype, device=DEVICE)
    return copy.copy_(source)


mirrors = Mirrors()
