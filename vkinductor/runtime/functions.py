"""Device-level Vulkan functions, resolved once and called through raw cffi pointers: no loader trampoline, no
wrapper.
"""

from __future__ import annotations

from typing import Any

from vkinductor.runtime.errors import UnsupportedError

# Vulkan 1.0 to 1.2: every device we open has them.
CORE = (
    "vkAllocateCommandBuffers",
    "vkAllocateMemory",
    "vkBeginCommandBuffer",
    "vkBindBufferMemory",
    "vkCmdBindPipeline",
    "vkCmdCopyBuffer",
    "vkCmdDispatch",
    "vkCmdDispatchIndirect",
    "vkCmdExecuteCommands",
    "vkCmdFillBuffer",
    "vkCmdPipelineBarrier",
    "vkCmdPushConstants",
    "vkCmdResetQueryPool",
    "vkCmdWriteTimestamp",
    "vkCreateBuffer",
    "vkCreateCommandPool",
    "vkCreateComputePipelines",
    "vkCreatePipelineCache",
    "vkCreatePipelineLayout",
    "vkCreateQueryPool",
    "vkCreateSemaphore",
    "vkCreateShaderModule",
    "vkDestroyBuffer",
    "vkDestroyCommandPool",
    "vkDestroyDevice",
    "vkDestroyPipeline",
    "vkDestroyPipelineCache",
    "vkDestroyPipelineLayout",
    "vkDestroyQueryPool",
    "vkDestroySemaphore",
    "vkDestroyShaderModule",
    "vkDeviceWaitIdle",
    "vkEndCommandBuffer",
    "vkFreeCommandBuffers",
    "vkFreeMemory",
    "vkGetBufferDeviceAddress",
    "vkGetBufferMemoryRequirements",
    "vkGetDeviceQueue",
    "vkGetPipelineCacheData",
    "vkGetQueryPoolResults",
    "vkGetSemaphoreCounterValue",
    "vkMapMemory",
    "vkQueueSubmit",
    "vkResetCommandPool",
    "vkWaitSemaphores",
)

# Vulkan 1.3 or an extension (name, its name before promotion); None when the device has neither.
OPTIONAL = (
    ("vkCmdPipelineBarrier2", "vkCmdPipelineBarrier2KHR"),
    ("vkGetCalibratedTimestampsKHR", "vkGetCalibratedTimestampsEXT"),
)


class Functions:
    """One attribute a function, as a cffi function pointer; optional ones may be None."""

    def __init__(self, ffi: Any, lib: Any, device: Any) -> None:
        def resolve(name: str, ctype: str) -> Any:
            pointer = lib.vkGetDeviceProcAddr(device, ffi.new("char[]", name.encode()))
            return None if pointer == ffi.NULL else ffi.cast(f"PFN_{ctype}", pointer)

        for name in CORE:
            function = resolve(name, name)
            if function is None:
                raise UnsupportedError(f"the driver has no {name}: update it")
            setattr(self, name, function)
        for name, alias in OPTIONAL:
            setattr(self, name, resolve(name, name) or resolve(alias, name))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} is not in the tables of {__name__}: add it there")
