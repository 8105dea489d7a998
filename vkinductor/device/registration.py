"""Makes "vulkan" a torch device: names, hooks, kernels. Opens no Vulkan and imports neither Dynamo nor
Inductor.

`register` is what a package calls on import. torch has one slot for a device that is not built in
(PrivateUse1); it is taken here, or found taken by somebody else.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from vkinductor.device import (
    attention,
    autocast,
    composed,
    copies,
    eager,
    factory,
    fakes,
    fused_linear,
    guards,
    hooks,
    linear_argmax,
    metadata,
    module,
    profiler,
    quantized,
    random,
    rnn,
)
from vkinductor.device.registry import DEVICE_NAME, registry
from vkinductor.runtime.errors import UnsupportedError

_UNNAMED = "privateuseone"  # the slot's name while it is free


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return module.is_available()

    def has_primary_context(self, device_index: int) -> bool:
        return registry.current() is not None

    def is_built(self) -> bool:
        return True


class _DeviceGuard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


def register() -> None:
    """Register the device. Idempotent and thread-safe.

    Raises:
        UnsupportedError: another package has already registered a device in torch's only slot for one.
    """
    with registry.lock:
        if registry.registered:
            return
        _claim_slot()
        torch.utils.rename_privateuse1_backend(DEVICE_NAME)
        torch._register_device_module(DEVICE_NAME, sys.modules[module.__name__])
        _generate_methods()
        device_hooks, guard = _Hooks(), _DeviceGuard()
        torch._C._acc.register_python_privateuseone_hook(device_hooks)
        torch._C._acc.register_python_privateuseone_device_guard(guard)
        registry.libraries += [device_hooks, guard]  # torch's C++ calls them as long as the process lives
        _register_kernels()
        guards.install()
        fakes.install()
        profiler.install()
        hooks.add_on_init(profiler.follow)
        registry.registered = True


def _claim_slot() -> None:
    name = torch._C._get_privateuse1_backend_name()
    owner = getattr(torch, name, None)
    has_kernels = torch._C._dispatch_has_kernel_for_dispatch_key("aten::empty.memory_format", "PrivateUse1")
    if name in (_UNNAMED, DEVICE_NAME) and owner is None and not has_kernels:
        return  # free, or renamed by hand and nothing more
    raise UnsupportedError(
        f"torch has one slot for an additional device, and {getattr(owner, '__name__', 'another package')} has taken "
        f"it as {name!r}: a process can use one of the two; import only vkinductor, or set "
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0 if the other is loaded automatically"
    )


def _generate_methods() -> None:
    """`Tensor.vulkan()`, `Tensor.is_vulkan`, `Module.vulkan()` and so on."""
    # torch has a Tensor.is_vulkan already, of a mobile backend that this build does not contain, and would
    # refuse.
    registration: Any = torch.utils.backend_registration
    check = registration._check_register_once
    registration._check_register_once = lambda owner, name: None
    try:
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    finally:
        registration._check_register_once = check


def _register_kernels() -> None:
    aten = torch.library.Library("aten", "IMPL")
    every = torch.library.Library("_", "IMPL")
    registry.libraries += [aten, every]
    for part in (attention, metadata, factory, copies, composed, random, rnn):
        part.register(aten)
    eager.register(aten, every)
    quantized.register()
    fused_linear.register()
    linear_argmax.register()
    autocast.register(aten, every)
