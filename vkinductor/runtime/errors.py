"""The typed errors of the runtime, and the translation of Vulkan result codes into them.

Every message names the thing that failed and says what to do about it. Nothing here imports Vulkan.
"""

from __future__ import annotations


class VulkanError(RuntimeError):
    """Base of every error the runtime raises on purpose."""


class NoDeviceError(VulkanError):
    """No Vulkan loader, no driver, or no device that matches the selector."""


class ShaderCompileError(VulkanError):
    """A shader did not compile, or the driver refused its pipeline; the message shows the numbered GLSL."""


class VulkanOutOfMemoryError(VulkanError):
    """Device or host memory ran out after a sweep and one retry; the message gives the sizes."""


class DeviceLostError(VulkanError):
    """The device stopped answering. Sticky: every later call on that device raises it again."""


class ProgramFailedError(VulkanError):
    """A program gave up: a workgroup did not come to where others waited for it. What it was to write is incomplete."""


class UnsupportedError(VulkanError):
    """The device, the driver or a tool lacks something that was asked for; the message names it."""


class FallbackError(VulkanError):
    """An operator would run on the CPU where the fallback policy forbids it: made by ``of``."""

    def __init__(self, message: str, operator: str = "", reason: str = "", where: str = "") -> None:
        super().__init__(message, operator, reason, where)

    @classmethod
    def of(cls, operator: str, reason: str, where: str = "") -> FallbackError:
        """The error for an operator that has no kernel on the device for a reason, at a source line ("": unknown)."""
        message = (
            f"{operator} would run on the CPU: {reason}. The fallback policy is 'error': write this part in other "
            "operators, register a kernel for it (docs/custom-operators.md), or choose 'warn' or 'allow'"
        )
        return cls(f"{message}\n  {where}" if where else message, operator, reason, where)

    @property
    def operator(self) -> str:
        """The operator's name, such as "aten.sort.default"."""
        return str(self.args[1])

    @property
    def reason(self) -> str:
        """Why it has no kernel on the device."""
        return str(self.args[2])

    @property
    def where(self) -> str:
        """The user's source line, "" if it is not known."""
        return str(self.args[3])

    def __str__(self) -> str:
        return str(self.args[0])


class OperatorError(VulkanError):
    """An operator registered by the user is declared twice or wrongly, or called with what it does not take."""


class CheckError(VulkanError):
    """A kernel's result is further from the CPU's than its dtype explains (``options={"check": "error"}``)."""


class IndexOutOfBoundsError(VulkanError, IndexError):
    """A kernel was given an index outside of its tensor (``options={"check_bounds": True}``)."""


class CacheError(VulkanError):
    """The disk cache was asked for something impossible (a bad location or limit, never a read failure)."""


def find(error: BaseException | None, kind: type[Exception]) -> Exception | None:
    """The first ``kind`` among ``error`` and what it was raised for (compilers wrap what their passes raise)."""
    seen: set[int] = set()
    todo = [error]
    while todo:
        at = todo.pop(0)
        if at is None or id(at) in seen:
            continue
        seen.add(id(at))
        if isinstance(at, kind):
            return at
        todo += [getattr(at, "inner_exception", None), at.__cause__, at.__context__]
    return None


# VkResult values, by number so that this module needs no binding.
SUCCESS = 0
NOT_READY = 1
TIMEOUT = 2
INCOMPLETE = 5
OUT_OF_HOST_MEMORY = -1
OUT_OF_DEVICE_MEMORY = -2
INITIALIZATION_FAILED = -3
DEVICE_LOST = -4

RESULT_NAMES: dict[int, str] = {
    NOT_READY: "VK_NOT_READY",
    TIMEOUT: "VK_TIMEOUT",
    INCOMPLETE: "VK_INCOMPLETE",
    OUT_OF_HOST_MEMORY: "VK_ERROR_OUT_OF_HOST_MEMORY",
    OUT_OF_DEVICE_MEMORY: "VK_ERROR_OUT_OF_DEVICE_MEMORY",
    INITIALIZATION_FAILED: "VK_ERROR_INITIALIZATION_FAILED",
    DEVICE_LOST: "VK_ERROR_DEVICE_LOST",
    -5: "VK_ERROR_MEMORY_MAP_FAILED",
    -6: "VK_ERROR_LAYER_NOT_PRESENT",
    -7: "VK_ERROR_EXTENSION_NOT_PRESENT",
    -8: "VK_ERROR_FEATURE_NOT_PRESENT",
    -9: "VK_ERROR_INCOMPATIBLE_DRIVER",
    -10: "VK_ERROR_TOO_MANY_OBJECTS",
    -12: "VK_ERROR_FRAGMENTED_POOL",
    -13: "VK_ERROR_UNKNOWN",
    -1000257000: "VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS",
}

_TYPES: dict[int, type[VulkanError]] = {
    OUT_OF_HOST_MEMORY: VulkanOutOfMemoryError,
    OUT_OF_DEVICE_MEMORY: VulkanOutOfMemoryError,
    DEVICE_LOST: DeviceLostError,
}


def result_name(result: int) -> str:
    """The VK_... name of a VkResult, or its number when it is not a known one."""
    return RESULT_NAMES.get(result, f"VkResult {result}")


def check(result: int, what: str) -> None:
    """Raise the typed error for a negative VkResult; `what` names the call and its subject.

    Raises:
        VulkanOutOfMemoryError, DeviceLostError or VulkanError.
    """
    if result < 0:
        raise _TYPES.get(result, VulkanError)(f"{what} failed: {result_name(result)}")
