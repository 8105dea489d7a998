"""The one device of this process: opening it on first use, closing it, what happens around fork and exit."""

from __future__ import annotations

import atexit
import os
import threading

from vkinductor.runtime import env
from vkinductor.runtime.device import Device
from vkinductor.runtime.errors import VulkanError
from vkinductor.runtime.loader import check_fork, driver_variables, instance, release
from vkinductor.runtime.physical import choose, enumerate_devices
from vkinductor.runtime.registry import registry
from vkinductor.runtime.stats import counters

_FORKED = VulkanError(
    "this process was forked after the Vulkan device had been opened, and its tensors cannot be used here. "
    'Start workers with the "spawn" method (multiprocessing.set_start_method("spawn")), or fork before the '
    "first use of the device"
)


def get() -> Device:
    """The device, opened on the first call (VKINDUCTOR_DEVICE chooses it). Thread-safe.

    Nothing is kept when opening fails, so that a later call tries anew.

    Raises:
        NoDeviceError: no loader, no driver, no device, or none that matches.
        UnsupportedError: the device lacks what is required, or validation was asked for and is missing.
        VulkanError: this process was forked from one that had the device open.
    """
    device = registry.device
    if device is not None and not registry.forked:
        return device
    with registry.lock:
        check_fork()
        if registry.device is None:
            registry.device = _open()
        return registry.device


def is_open() -> bool:
    """Whether this process has the device open."""
    return registry.device is not None and not registry.forked


def reset() -> None:
    """Close the device and zero the counters, for tests: the next use reads the environment anew.

    Addresses that are still out become invalid; freeing them does nothing.
    """
    with registry.lock:
        _close()
        counters.reset()


def _open() -> Device:
    owner = instance()
    try:
        pairs = enumerate_devices(owner)
        try:
            info = choose([info for _, info in pairs], env.device_selector())
        except VulkanError as error:
            raise type(error)(f"{error}{driver_variables()}") from None
        physical = next(handle for handle, candidate in pairs if candidate is info)
        device = Device(owner, physical, info)
    except BaseException:
        # A loader that found no driver would find none for ever: the next call starts from a new instance.
        release()
        raise
    if not registry.hooks_installed:
        registry.hooks_installed = True
        atexit.register(_at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_here, after_in_child=_after_fork)
    return device


def _close() -> None:
    if registry.forked:
        return
    device, registry.device = registry.device, None
    if device is not None:
        device.close()


def _at_exit() -> None:
    # Drivers with threads of their own (lavapipe) may crash when their library is unloaded under an open
    # device.
    if registry.pid == os.getpid():
        _close()
        release()


def _before_fork() -> None:
    device = registry.device
    if device is not None and not registry.forked:
        device.pipelines.threads.pause()


def _after_fork_here() -> None:
    device = registry.device
    if device is not None and not registry.forked:
        device.pipelines.threads.resume()


def _after_fork() -> None:
    registry.lock = threading.RLock()  # whoever held it is not in this process
    if registry.device is not None:
        registry.forked = True
        registry.device.abandon(_FORKED)
