"""vkinductor: ``torch.compile`` for every GPU that has a Vulkan driver.

``import vkinductor`` registers the torch device "vulkan" and nothing more: Vulkan is opened, and Inductor loaded,
when something first needs them. ``torch.compile(model, backend="vulkan")`` needs no import at all.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

from vkinductor.runtime.errors import (
    CacheError,
    CheckError,
    DeviceLostError,
    FallbackError,
    IndexOutOfBoundsError,
    NoDeviceError,
    OperatorError,
    ProgramFailedError,
    ShaderCompileError,
    UnsupportedError,
    VulkanError,
    VulkanOutOfMemoryError,
)

from ._api import (
    cache_stats,
    check_report,
    device_count,
    device_info,
    device_name,
    empty_cache,
    explain,
    is_available,
    memory_stats,
    register,
    register_kernel,
    register_lowering,
    reset_stats,
    set_fallback,
    stats,
    supported_ops,
    synchronize,
)

__all__ = [
    "CacheError",
    "CheckError",
    "DeviceLostError",
    "FallbackError",
    "IndexOutOfBoundsError",
    "NoDeviceError",
    "OperatorError",
    "ProgramFailedError",
    "ShaderCompileError",
    "UnsupportedError",
    "VulkanError",
    "VulkanOutOfMemoryError",
    "cache_stats",
    "check_report",
    "device_count",
    "device_info",
    "device_name",
    "empty_cache",
    "explain",
    "is_available",
    "memory_stats",
    "register",
    "register_kernel",
    "register_lowering",
    "reset_stats",
    "set_fallback",
    "stats",
    "supported_ops",
    "synchronize",
]

register()


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module 'vkinductor' has no attribute {name!r}; it offers {', '.join(__all__)}")
