"""Tensors over device memory: makes them, knows when their storage has died, and gives the memory back.

A tensor's `data_ptr()` is its buffer device address (plus the allocator's bias in poison mode). Tensors are
made through DLPack (device type 12, kDLExtDev, which torch maps to PrivateUse1) without a deleter: a Python
deleter that runs while an exception is pending would turn that exception into SystemError. Death is seen
instead through weak references to the storages, looked at when memory runs short. Copies, views and factories
are other modules' work.
"""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from vkinductor.device import strides
from vkinductor.device.dtypes import DTYPES
from vkinductor.device.registry import registry
from vkinductor.runtime.errors import UnsupportedError, VulkanOutOfMemoryError

if TYPE_CHECKING:
    from vkinductor.runtime.device import Device

_EXT_DEV = 12  # kDLExtDev
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_BYTES_BY_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MAX_LAYOUTS = 8192  # dynamic shapes make new ones for ever
_YOUNG_BEFORE_FULL = 64

_from_dlpack: Any = torch._C._from_dlpack
_expired: Any = torch.UntypedStorage._expired
_free_weak_ref = torch.UntypedStorage._free_weak_ref

_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class Layout:
    """Size, stride and dtype of a tensor in the form DLPack wants, ready to be used again."""

    __slots__ = ("dtype", "head", "keep", "nbytes", "shape_pointer", "size", "stride", "stride_pointer", "view_dtype")

    def __init__(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> None:
        entry = DTYPES.get(dtype)
        if entry is None:
            raise UnsupportedError(
                f"a vulkan tensor cannot have dtype {dtype}: convert it first, or keep it on the CPU"
            )
        if len(size) != len(stride) or any(n < 0 for n in size) or any(s < 0 for s in stride):
            raise RuntimeError(f"cannot make a tensor of size {list(size)} and stride {list(stride)}")
        self.size, self.stride, self.dtype = tuple(size), tuple(stride), dtype
        self.view_dtype = dtype if entry.dlpack is None else None
        dlpack = entry.dlpack or DTYPES[_BYTES_BY_SIZE[dtype.itemsize]].dlpack
        assert dlpack is not None
        code, bits = dlpack
        # ndim (int32), code (uint8), bits (uint8), lanes (uint16) share one 8-byte word of DLTensor.
        self.head = len(size) | code << 32 | bits << 40 | 1 << 48
        self.keep = array("q", [*size, *stride])
        self.shape_pointer = self.keep.buffer_info()[0]
        self.stride_pointer = self.shape_pointer + 8 * len(size)
        self.nbytes = strides.extent(size, stride) * dtype.itemsize


class Ledger:
    """Which storages own which addresses; `sweep` frees those of dead storages.

    Two generations. A sweep under pressure looks at the allocations since the last one; survivors grow old,
    and the old are looked at once as many allocations have been made as half of them. So an allocation pays
    for a constant number of looks. No lock is held while the allocator is called: the allocator calls
    `on_pressure` under its own.
    """

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        # Added without the lock, by finalizers: entries of storages that outlive what owned their memory.
        self.orphans: deque[tuple[int, int]] = deque()
        self._young: list[tuple[int, int]] = []
        self._old: list[tuple[int, int]] = []
        self._since_full = 0

    def add(self, weak: int, address: int) -> None:
        """Own `address` on behalf of the storage behind `weak` (what `UntypedStorage._weak_ref` returns)."""
        with self._lock:
            self._young.append((weak, address))

    def on_pressure(self) -> None:
        """Free dead storages, at an amortised constant cost for each allocation."""
        with self._lock:
            self._since_full += len(self._young)
            # Asked again before anything was allocated: the allocator is about to give up.
            full = not self._young or self._since_full >= max(_YOUNG_BEFORE_FULL, len(self._old) // 2)
        self.sweep(full=full)

    def sweep(self, full: bool = True) -> int:
        """Free the memory of all dead storages (of the young ones only, unless `full`). Returns how many
        there were."""
        with self._lock:
            candidates, self._young = self._young, []
            while self.orphans:
                candidates.append(self.orphans.popleft())
            if full:
                candidates += self._old
                self._old = []
                self._since_full = 0
        alive: list[tuple[int, int]] = []
        dead: list[tuple[int, int]] = []
        for entry in candidates:
            (dead if _expired(entry[0]) else alive).append(entry)
        with self._lock:
            self._old += alive
        free = self._memory.free
        for weak, address in dead:
            _free_weak_ref(weak)
            free(address)
        return len(dead)

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


class TorchDevice:
    """An opened device as torch sees it: the runtime's device, the ledger of storages, and cached layouts and
    kernels."""

    def __init__(self, runtime: Device) -> None:
        self.runtime = runtime
        self.memory = runtime.memory
        self.stream = runtime.stream
        self.ledger = Ledger(runtime.memory)
        self.layouts: dict[tuple[Any, ...], Layout] = {}
        self.kernels: dict[Any, Any] = {}  # `strided`'s pipelines
        self.copy_plans: dict[Any, Any] = {}  # and what it does for shapes it has seen
        self.replayed: dict[int, list[Any]] = {}  # thread -> its replays, while somebody looks (codegen/recording.py)
        self._allocate = runtime.memory.allocate
        # One DLManagedTensor serves every tensor: torch copies what it needs, and keeps the pointer only to
        # see, when the storage dies, that there is no deleter. It must therefore live as long as any tensor:
        # it is never freed.
        self._words = (ctypes.c_uint64 * 8)()
        _immortal(self._words)
        self._managed = ctypes.addressof(self._words)
        self._view = memoryview(self._words).cast("B").cast("Q")
        self._view[1] = _EXT_DEV
        self._lock = threading.Lock()
        runtime.memory.on_pressure = self.ledger.on_pressure

    def layout(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Layout:
        """The cached layout. size and stride are in elements."""
        key = (tuple(size), tuple(stride), dtype)
        layout = self.layouts.get(key)
        if layout is None:
            layout = Layout(*key)
            if len(self.layouts) >= _MAX_LAYOUTS:
                self.layouts.clear()
            self.layouts[key] = layout
        return layout

    def make(self, layout: Layout) -> torch.Tensor:
        """A new tensor with its own storage; contents are undefined.

        Raises:
            VulkanOutOfMemoryError: also after every dead storage has been given back.
        """
        captures = self.stream.captures
        if captures.by_thread and (capture := captures.current) is not None:
            return self.at(layout, capture.resource(layout.nbytes or 1, layout))
        address = self.allocate(layout.nbytes)
        tensor = self.at(layout, address)
        weak: Any = tensor.untyped_storage()._weak_ref()
        self.ledger.add(weak, address)
        return tensor

    def allocate(self, nbytes: int) -> int:
        """The address of fresh memory, which the caller frees or hands to the ledger.

        Raises:
            VulkanOutOfMemoryError: also after every dead storage has been given back.
        """
        nbytes = nbytes or 1  # an empty tensor still has an address of its own
        try:
            return self._allocate(nbytes)
        except VulkanOutOfMemoryError:
            if not self.ledger.sweep():
                raise
            return self._allocate(nbytes)

    def at(self, layout: Layout, address: int) -> torch.Tensor:
        """A tensor over memory that the caller owns."""
        # The capsule comes first: making it may run the garbage collector and so, through somebody's __del__,
        # this method.
        capsule = _new_capsule(self._managed, b"dltensor", None)
        words = self._view
        with self._lock:
            words[0] = address
            words[2] = layout.head
            words[3] = layout.shape_pointer
            words[4] = layout.stride_pointer
            tensor = _from_dlpack(capsule)
        if layout.view_dtype is not None:
            return torch.ops.aten.view.dtype.redispatch(_CPU, tensor, layout.view_dtype)
        return tensor


def _immortal(thing: Any) -> None:
    """Keep `thing` until the process ends, whoever else lets go of it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def empty(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A new vulkan tensor with undefined contents. size and stride in elements; opens the device if need be.

    This is the fast path of generated code: it does not dispatch. tuples only (they are looked up as given).

    Raises:
        VulkanOutOfMemoryError, UnsupportedError (dtype), NoDeviceError.
    """
    device = registry.open()
    layout = device.layouts.get((size, stride, dtype))
    return device.make(layout or device.layout(size, stride, dtype))


def empty_contiguous(size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """`empty` with row-major strides."""
    size = tuple(size)
    return empty(size, strides.contiguous(size), dtype)


def nbytes_range(tensor: torch.Tensor) -> tuple[int, int]:
    """(address of the first element, bytes from there to the end of the last): what a kernel may touch. (0,
    0) if empty."""
    count = strides.extent(tensor.size(), tensor.stride())
    return (tensor.data_ptr(), count * tensor.itemsize) if count else (0, 0)


def sweep() -> int:
    """Give the memory of every dead tensor back to the allocator. Returns how many storages had died."""
    device = registry.current()
    return device.ledger.sweep() if device is not None else 0
