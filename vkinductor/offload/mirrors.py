"""Device copies of CPU tensors, made once and made again when the CPU side changes in place.

A mirror belongs to a storage: inputs which alias each other on the CPU alias each other on the device. It is good
for the version counters it was made at, and goes when the CPU storage goes. Writing through ``tensor.data`` or a
NumPy array moves no version counter and so is not seen (nor is it by autograd).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef

DEVICE = torch.device("vulkan", 0)

# A tensor that sees less than one part in this many of its storage is mirrored without the rest.
_SMALL_PART = 4
# Views kept a mirror: a cache that is read through a new slice at each call makes new ones for ever.
_MAX_VIEWS = 64

Place = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]
Key = tuple[int, Place | None]  # storage, and the one tensor's place unless the whole storage is mirrored


def place(tensor: torch.Tensor) -> Place:
    """dtype, sizes, strides and offset: what a tensor sees of its storage."""
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


@dataclass
class Mirror:
    """Device memory that holds a CPU storage, or one tensor's part of it.

    ``versions``: the version counter of each place at the last copy (places may have counters of their own).
    ``views``: device tensors by place.
    """

    source: StorageWeakRef
    nbytes: int
    data: torch.Tensor
    part: bool
    versions: dict[Place, int] = field(default_factory=dict)
    views: dict[Place, torch.Tensor] = field(default_factory=dict)
    survived: bool = False  # a look at which were dead

    def current(self, tensor: torch.Tensor, where: Place) -> bool:
        """Whether what ``tensor`` sees has not changed since the copy."""
        version = self.versions.get(where)
        if version is None:
            # Seen at this place for the first time: trust it only if there can be but one counter.
            return set(self.versions.values()) == {tensor._version}
        return version == tensor._version

    def view(self, where: Place) -> torch.Tensor:
        """The device tensor for ``where``: same dtype, sizes and strides."""
        view = self.views.get(where)
        if view is None:
            dtype, size, stride, offset = where
            view = torch.empty(0, dtype=dtype, device=DEVICE)
            view.set_(self.data.untyped_storage(), 0 if self.part else offset, size, stride)
            if len(self.views) >= _MAX_VIEWS:
                self.views.clear()
            self.views[where] = view
        return view


class Mirrors:
    """All mirrors of the process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # Grows when mirrors are dropped whose sources have not changed: what was lent before is not to be used again.
        self.epoch = 0
        # Entries that no second call has used: mostly activations, soon dead, and looked at by each call that copies.
        self._young: dict[Key, Mirror] = {}
        self._old: dict[Key, Mirror] = {}
        self._sweep_at = 64
        self._swept = False

    def lend(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Device tensors that see what CPU ``tensors`` see: same dtypes, sizes, strides and aliasing; detached.

        They are good for this call. Raises VulkanOutOfMemoryError and UnsupportedError (dtype).
        """
        groups: dict[int, list[int]] = {}
        for i, tensor in enumerate(tensors):
            groups.setdefault(tensor.untyped_storage()._cdata, []).append(i)
        result: list[torch.Tensor] = list(tensors)
        # Mirrors outlive the call: they must not be inference tensors because it is made in inference mode.
        with self._lock, torch.inference_mode(False), torch.no_grad():
            self._swept = False
            for storage, members in groups.items():
                views = self._lend(storage, [tensors[i] for i in members])
                for i, view in zip(members, views, strict=True):
                    result[i] = view
        return result

    def _lend(self, storage: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Views for ``tensors``, which share one storage."""
        if any(t.is_conj() or t.is_neg() for t in tensors):
            return [t.resolve_conj().resolve_neg().to(DEVICE) for t in tensors]
        if any(t.is_inference() for t in tensors):
            # They have no version counter: nobody can tell whether they have changed.
            return self._fresh(tensors, [place(t) for t in tensors])
        places = [place(t) for t in tensors]
        nbytes = tensors[0].untyped_storage().nbytes()
        for key in ((storage, None), (storage, places[0])) if len(tensors) == 1 else ((storage, None),):
            mirror = self._find(key, nbytes)
            if mirror is not None and all(map(mirror.current, tensors, places)):
                break
        else:
            mirror = self._copy(storage, nbytes, tensors, places)
        for tensor, where in zip(tensors, places, strict=True):
            mirror.versions[where] = tensor._version
        return [mirror.view(where) for where in places]

    def _find(self, key: Key, nbytes: int) -> Mirror | None:
        mirror = self._old.get(key)
        if mirror is None:
            mirror = self._young.get(key)
            if mirror is None:
                return None
            if not mirror.source.expired():
                self._old[key] = self._young.pop(key)
        if mirror.source.expired() or mirror.nbytes != nbytes:
            self._old.pop(key, None)
            self._young.pop(key, None)
            return None
        return mirror

    def _copy(self, storage: int, nbytes: int, tensors: list[torch.Tensor], places: list[Place]) -> Mirror:
        """A new mirror in the place of an old one."""
        if not self._swept:
            self._swept = True
            self._sweep()
        source = tensors[0]
        part = len(tensors) == 1 and nbytes > _SMALL_PART * source.nbytes and source.numel() > 0
        keys: list[Key] = [(storage, None)]
        if part:
            keys.insert(0, (storage, places[0]))
        for key in keys:
            self._old.pop(key, None)
            self._young.pop(key, None)
        data = _part(source) if part else _bytes(source.untyped_storage()).to(DEVICE)
        mirror = Mirror(StorageWeakRef(source.untyped_storage()), nbytes, data, part)
        self._young[keys[0]] = mirror
        return mirror

    def _fresh(self, tensors: list[torch.Tensor], places: list[Place]) -> list[torch.Tensor]:
        storage = tensors[0].untyped_storage()
        mirror = Mirror(StorageWeakRef(storage), storage.nbytes(), _bytes(storage).to(DEVICE), False)
        return [mirror.view(where) for where in places]

    def wrote(self, tensor: torch.Tensor) -> None:
        """Say that ``tensor`` has just been given what its mirror holds: the mirror stays good.

        To be said for every tensor of a storage that was lent together.
        """
        if tensor.is_inference():
            return
        where = place(tensor)
        with self._lock:
            for key in ((tensor.untyped_storage()._cdata, None), (tensor.untyped_storage()._cdata, where)):
                mirror = self._old.get(key) or self._young.get(key)
                if mirror is not None and where in mirror.versions:
                    mirror.versions[where] = tensor._version

    def forget(self, tensor: torch.Tensor) -> None:
        """Drop the mirrors of the storage of ``tensor``."""
        storage = tensor.untyped_storage()._cdata
        with self._lock:
            self.epoch += 1
            for entries in (self._old, self._young):
                for key in [key for key in entries if key[0] == storage]:
                    del entries[key]

    def clear(self) -> None:
        """Forget all mirrors (their memory goes when nothing else holds it)."""
        with self._lock:
            self.epoch += 1
            self._young.clear()
            self._old.clear()

    def sweep(self) -> None:
        """Drop the mirrors of dead storages."""
        with self._lock:
            self._young = _living(self._young)
            self._old = _living(self._old)
            self._sweep_at = max(64, 2 * len(self._old))

    def _sweep(self) -> None:
        """The same at a cost in proportion to what is new."""
        if len(self._young) + len(self._old) >= self._sweep_at:
            self.sweep()
            return
        young, self._young = self._young, {}
        for key, mirror in young.items():
            if not mirror.source.expired():
                (self._old if mirror.survived else self._young)[key] = mirror
                mirror.survived = True

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


def _living(entries: dict[Key, Mirror]) -> dict[Key, Mirror]:
    return {key: mirror for key, mirror in entries.items() if not mirror.source.expired()}


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def _part(source: torch.Tensor) -> torch.Tensor:
    """A copy of one tensor with its strides (what lies between its elements stays undefined)."""
    copy = torch.empty_strided(source.size(), source.stride(), dtype=source.dtype, device=DEVICE)
    # Zero strides: the elements that share a place in memory are written once.
    index = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in source.stride())
    copy[index].copy_(source.detach()[index])
    return copy


mirrors = Mirrors()
