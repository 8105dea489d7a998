"""The few torch entry points that must be wrapped because no dispatcher key reaches them.

torch has no allocator, no generator and no storage resize for a device made in Python: its C++ would
dereference a null allocator, or fail with a message about C++ hooks. Each wrapper passes everything that is
not vulkan straight through.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from vkinductor.device.registry import DEVICE_NAME, registry
from vkinductor.runtime.errors import UnsupportedError


def is_vulkan(device: Any) -> bool:
    """Whether `device` (a torch.device, a string, an index or None) names the vulkan device."""
    if isinstance(device, torch.device):
        return device.type == DEVICE_NAME
    return isinstance(device, str) and device.partition(":")[0] == DEVICE_NAME


def check_device(device: Any) -> None:
    """Raise `UnsupportedError` unless `device` is the one vulkan device there is ("vulkan" or "vulkan:0")."""
    index = torch.device(device).index if device is not None else None
    if index not in (None, 0):
        raise UnsupportedError(
            f"device {device}: torch sees one vulkan device, vulkan:0; choose which GPU that is with VKINDUCTOR_DEVICE"
        )


def _storage_new(original: Any) -> Any:
    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or not is_vulkan(device) or "wrap_storage" in kwargs:
            return original(cls, *args, **kwargs)
        from vkinductor.device import copies, storage

        check_device(device)
        if len(args) > 1:
            raise TypeError("UntypedStorage(size or sequence, *, device) takes one positional argument")
        if args and not isinstance(args[0], int):
            return copies.to_device(torch.tensor(list(args[0]), dtype=torch.uint8)).untyped_storage()
        return storage.empty_contiguous((args[0] if args else 0,), torch.uint8).untyped_storage()

    return __new__


def _storage_resize(original: Any) -> Any:
    @functools.wraps(original)
    def resize_(self: Any, size: int) -> Any:
        if self.device.type != DEVICE_NAME:
            return original(self, size)
        if size == self.nbytes():
            return self
        raise UnsupportedError(
            f"a vulkan storage cannot be resized (from {self.nbytes()} to {size} bytes): use tensor.resize_(), or make "
            "a new tensor and tensor.set_() it"
        )

    return resize_


def _storage_share(original: Any) -> Any:
    @functools.wraps(original)
    def share(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == DEVICE_NAME:
            raise UnsupportedError("vulkan memory cannot be shared between processes: send tensor.cpu() instead")
        return original(self, *args, **kwargs)

    return share


def _generator_class() -> Any:
    base = torch._C.Generator

    class GeneratorMeta(type(base)):  # type: ignore[misc]
        # Generators made in C++ are of the base class; they must still count as `torch.Generator`.
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, base)

        def __subclasscheck__(cls, subclass: Any) -> bool:
            return issubclass(subclass, base)

    def __new__(cls: Any, device: Any = "cpu") -> Any:
        if is_vulkan(device):
            raise UnsupportedError(
                "torch.Generator(device='vulkan') cannot be made: torch.vulkan.manual_seed() seeds the device, and a "
                "CPU generator is accepted by every random operator on vulkan tensors"
            )
        return base(device)

    return GeneratorMeta("Generator", (base,), {"__new__": __new__, "__module__": "torch", "__doc__": base.__doc__})


def _tensor_str(original: Any) -> Any:
    @functools.wraps(original)
    def tensor_str(self: torch.Tensor, indent: int) -> str:
        # Printing takes dozens of small operators: they run on a copy in host memory.
        plain = type(self) in (torch.Tensor, torch.nn.Parameter) and self.device.type == DEVICE_NAME
        return original(self.detach().cpu() if plain else self, indent)

    return tensor_str


def _synchronize(original: Any) -> Any:
    @functools.wraps(original)
    def synchronize(device: Any = None, /) -> None:
        # A device guard in Python has no slot for this one.
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None or accelerator.type != DEVICE_NAME:
            return original(device)
        device = registry.current()
        if device is not None:
            device.stream.synchronize()
        return None

    return synchronize


def install() -> None:
    """Wrap the entry points. Called once, by `registration.register`."""
    names: Any = torch
    storage: Any = torch.UntypedStorage
    printing: Any = torch._tensor_str
    storage.__new__ = staticmethod(_storage_new(storage.__new__))
    storage.resize_ = _storage_resize(storage.resize_)
    storage._share_fd_cpu_ = _storage_share(storage._share_fd_cpu_)
    storage._share_filename_cpu_ = _storage_share(storage._share_filename_cpu_)
    names.Generator = _generator_class()
    printing._tensor_str = _tensor_str(printing._tensor_str)
    torch.accelerator.synchronize = _synchronize(torch.accelerator.synchronize)
