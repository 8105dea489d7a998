"""The device registry: all mutable state of the torch device, behind one lock, with a reset for tests.

Owns who opened the device, the generator, the hooks, the operators warned about, and the torch libraries that
must stay alive. What a device is made of (allocation of tensors, kernels) lives in `storage` and `copies`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vkinductor.runtime.registry import registry as _runtime

if TYPE_CHECKING:
    import torch

    from vkinductor.device.storage import TorchDevice

DEVICE_NAME = "vulkan"


class Registry:
    """State of the one torch device. Reading `device` needs no lock; opening it takes `lock`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.device: TorchDevice | None = None
        self.pid: int | None = None
        self.available: bool | None = None
        self.generator: torch.Generator | None = None
        self.generator_lock = threading.RLock()
        self.compile_op: Callable[..., Any] | None = None
        self.on_init: list[Callable[[], None]] = []
        self.warned: set[str] = set()
        self.fallback_policy = "warn"  # see `policy`
        self.profiles: list[Any] = []  # of torch's profiler, while they record
        self.trace_files: dict[str, Any] = {}  # by path
        self.libraries: list[Any] = []  # torch.library.Library unregisters its kernels when it dies
        self.operators: dict[str, Any] = {}  # name -> what a user has registered for it (operators/)
        self.reports: dict[int, Any] = {}  # of graphs that are being explained (codegen/report.py)
        self.checked_graphs: list[Any] = []  # compiled with options={"check": True} (codegen/checks.py)
        self.checks: dict[Any, Any] = {}  # what they found
        self.tuning: Any = None  # results of the open device (codegen/tuning/results.py)
        self.registered = False

    def open(self) -> TorchDevice:
        """The open device; opens Vulkan on the first call and runs the `on_init` hooks then.

        Raises:
            NoDeviceError, UnsupportedError: no device can be used.
        """
        device = self.current()
        if device is not None:
            return device
        with self.lock:
            device = self.current()
            if device is None:
                from vkinductor.device.storage import TorchDevice
                from vkinductor.runtime import context

                device = self.device = TorchDevice(context.get())
                if self.pid is None:
                    os.register_at_fork(after_in_child=self._after_fork)
                self.pid = os.getpid()
                for callback in tuple(self.on_init):
                    callback()
            return device

    def current(self) -> TorchDevice | None:
        """The open device, or None. A device that the runtime has closed in the meantime does not count."""
        device = self.device
        return device if device is not None and device.runtime is _runtime.device else None

    def _after_fork(self) -> None:
        # The lock's holder may be gone; the runtime refuses to open in such a child, and says why.
        self.lock = threading.RLock()
        self.generator_lock = threading.RLock()
        self.device = None

    def reset(self) -> None:
        """Close the device and forget seeds and warnings (tests). Tensors that are still alive become
        invalid."""
        with self.lock:
            self.device = None
            self.available = None
            self.generator = None
            self.tuning = None
            self.warned.clear()
            self.fallback_policy = "warn"
            from vkinductor.runtime import context

            context.reset()


registry = Registry()
