"""What Dynamo and Inductor may ask about the device (DeviceInterface)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface

from vkinductor.runtime import context

# Compute units to assume when Vulkan does not tell: enough to make Inductor split long reductions.
_UNITS = {"discrete": 64, "integrated": 12, "virtual": 32}


@dataclass(frozen=True)
class Properties:
    """Device properties under the names Inductor reads."""

    name: str
    multi_processor_count: int
    max_threads_per_block: int
    max_threads_per_multi_processor: int
    warp_size: int
    total_memory: int
    major: int | None = None
    regs_per_multiprocessor: int | None = None


def properties() -> Properties:
    """Properties of the open device (opens it)."""
    info = context.get().info
    units = _UNITS.get(info.kind) or os.cpu_count() or 1
    return Properties(
        name=info.name,
        multi_processor_count=units,
        max_threads_per_block=info.limits.max_workgroup_invocations,
        max_threads_per_multi_processor=2048,
        warp_size=max(1, info.limits.subgroup_size),
        total_memory=sum(heap.size for heap in info.heaps if heap.device_local),
    )


class VulkanInterface(DeviceInterface):
    """One device, one stream."""

    class Worker:
        """Property look-ups from compile workers; kernels are compiled in this process."""

        @staticmethod
        def set_device(device: int) -> None:
            return None

        @staticmethod
        def current_device() -> int:
            return 0

        @staticmethod
        def get_device_properties(device: Any = None) -> Properties:
            return properties()

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def set_device(device: Any) -> None:
        return None

    @staticmethod
    def maybe_exchange_device(device: int) -> int:
        return 0

    @staticmethod
    def exchange_device(device: int) -> int:
        return 0

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        return 0

    @staticmethod
    def synchronize(device: Any = None) -> None:
        context.get().stream.synchronize()

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        return ""

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return True

    @classmethod
    def is_dtype_supported(cls, dtype: torch.dtype, including_emulation: bool = False) -> bool:
        return dtype != torch.float64 or context.get().info.features.float64

    @staticmethod
    def is_triton_capable(device: Any = None) -> bool:
        return False

    @staticmethod
    def raise_if_triton_unavailable(device: Any = None) -> None:
        return None
