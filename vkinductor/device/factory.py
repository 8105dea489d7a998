"""Making and re-making tensors: `empty`, `empty_strided`, `resize_`, `set_`, `record_stream`.

Filling is `copies`' work, random numbers are `random`'s. `zeros`, `ones`, `full` and the like are composed
from these by torch itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vkinductor.device import copies, guards, metadata, storage, strides
from vkinductor.runtime.errors import UnsupportedError

_CHANNELS_LAST_ORDER = {
    torch.channels_last: (0, 2, 3, 1),
    torch.channels_last_3d: (0, 2, 3, 4, 1),
}


def strides_for(size: Sequence[int], memory_format: torch.memory_format | None) -> tuple[int, ...]:
    """Strides in elements of a new tensor of `size` in a memory format (None: row-major).

    Raises:
        RuntimeError: the format does not fit the number of dimensions, or is `torch.preserve_format`.
    """
    if memory_format is None or memory_format is torch.contiguous_format:
        return strides.contiguous(size)
    order = _CHANNELS_LAST_ORDER.get(memory_format)
    if order is None or len(order) != len(size):
        raise RuntimeError(f"memory format {memory_format} cannot be used for a new tensor of {len(size)} dimensions")
    steps = [0] * len(size)
    step = 1
    for dim in reversed(order):
        steps[dim] = step
        step *= size[dim] or 1
    return tuple(steps)


def _check_options(layout: torch.layout | None, device: torch.device | None, pin_memory: bool | None) -> None:
    if layout is not None and layout is not torch.strided:
        raise UnsupportedError(
            f"a vulkan tensor cannot have layout {layout}: only dense (strided) tensors; call .to_dense() first"
        )
    if pin_memory:
        raise UnsupportedError("pin_memory is for CPU tensors: make the tensor on the CPU, or leave pin_memory out")
    if device is not None and device.index:
        guards.check_device(device)


def empty_memory_format(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """`aten.empty.memory_format`."""
    _check_options(layout, device, pin_memory)
    size = tuple(size)
    return storage.empty(size, strides_for(size, memory_format), dtype or torch.get_default_dtype())


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """`aten.empty_strided`."""
    _check_options(layout, device, pin_memory)
    return storage.empty(tuple(size), tuple(stride), dtype or torch.get_default_dtype())


def resize_(
    tensor: torch.Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """`aten.resize_`. A storage that is too small is replaced by a larger one with the same contents.

    Unlike on the CPU, other tensors that shared the old storage keep the old one.
    """
    size = tuple(size)
    if size == tuple(tensor.size()) and memory_format in (None, torch.preserve_format):
        return tensor
    stride = strides_for(size, None if memory_format is torch.preserve_format else memory_format)
    offset = tensor.storage_offset()
    target = tensor.untyped_storage()
    needed = (offset + strides.extent(size, stride)) * tensor.itemsize
    if needed > target.nbytes():
        grown = storage.empty_contiguous((int(needed),), torch.uint8)
        kept = target.nbytes()
        if kept:
            copies.copy_bytes(grown.data_ptr(), target.data_ptr(), kept)
        target = grown.untyped_storage()
    _set(tensor, target, offset, size, stride)
    return tensor


def _resize_output_(tensor: torch.Tensor, size: Sequence[int], device: torch.device) -> torch.Tensor:
    return tensor if tuple(tensor.size()) == tuple(size) else resize_(tensor, size)


_set = metadata._on_cpu_key(metadata.overload("set_.source_Storage_storage_offset"))


def _set_storage(tensor: torch.Tensor, source: Any) -> torch.Tensor:
    """`aten.set_.source_Storage`: one dimension over the whole storage."""
    _set(tensor, source, 0, (source.nbytes() // tensor.itemsize,), (1,))
    return tensor


def _set_nothing(tensor: torch.Tensor) -> torch.Tensor:
    """`aten.set_`: an empty tensor on the same device."""
    _set(tensor, storage.empty_contiguous((0,), torch.uint8).untyped_storage(), 0, (0,), (1,))
    return tensor


def _record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """`aten.record_stream`: nothing to do, there is one in-order queue."""


KERNELS = {
    "empty.memory_format": empty_memory_format,
    "empty_strided": empty_strided,
    "resize_": resize_,
    "_resize_output_": _resize_output_,
    "set_.source_Storage": _set_storage,
    "set_": _set_nothing,
    "record_stream": _record_stream,
}


def register(library: torch.library.Library) -> None:
    """Add the kernels to torch's "aten" library."""
    for name, kernel in KERNELS.items():
        library.impl(name, kernel, "PrivateUse1")
