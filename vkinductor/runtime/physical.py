"""The devices of this machine: enumeration, and reading limits, features and cooperative shapes from the
driver.

`deviceinfo` has the dataclasses, `features` the feature tables, `drivers` what no property tells, `selection` the
choice; the names others need are re-exported here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from vkinductor.runtime import env
from vkinductor.runtime.deviceinfo import CooperativeShape, DeviceInfo, Features, Heap, Limits, MemoryType
from vkinductor.runtime.drivers import known
from vkinductor.runtime.errors import check
from vkinductor.runtime.features import (
    COOPERATIVE_MATRIX2_PROPERTIES,
    EXTENSION_ONLY,
    FLEXIBLE_DIMENSIONS_PROPERTIES,
    MEMBERS,
    FeatureChain,
    late_ffi,
)
from vkinductor.runtime.loader import Instance, instance
from vkinductor.runtime.selection import apply_overrides, choose, missing_requirements

__all__ = [
    "CooperativeShape",
    "DeviceInfo",
    "Features",
    "Heap",
    "Limits",
    "MemoryType",
    "choose",
    "enumerate_devices",
    "list_devices",
]

KINDS = {0: "other", 1: "integrated", 2: "discrete", 3: "virtual", 4: "cpu"}

_COMPUTE_STAGE = 0x20  # VK_SHADER_STAGE_COMPUTE_BIT
_QUEUE_COMPUTE = 0x2
_QUEUE_GRAPHICS = 0x1
_DEVICE_LOCAL = 0x1
_HOST_VISIBLE = 0x2

# VkSubgroupFeatureFlagBits -> Features field.
_SUBGROUP_BITS = {
    0x02: "subgroup_vote",
    0x04: "subgroup_arithmetic",
    0x08: "subgroup_ballot",
    0x10: "subgroup_shuffle",
    0x20: "subgroup_shuffle_relative",
    0x40: "subgroup_clustered",
}

# Member of VkPhysicalDeviceVulkan12Properties -> Features field.
_FLOAT_CONTROLS = {
    "shaderSignedZeroInfNanPreserveFloat16": "signed_zero_inf_nan_preserve_f16",
    "shaderSignedZeroInfNanPreserveFloat32": "signed_zero_inf_nan_preserve_f32",
    "shaderSignedZeroInfNanPreserveFloat64": "signed_zero_inf_nan_preserve_f64",
    "shaderDenormPreserveFloat16": "denorm_preserve_f16",
    "shaderDenormPreserveFloat32": "denorm_preserve_f32",
    "shaderDenormFlushToZeroFloat32": "denorm_flush_to_zero_f32",
    "shaderRoundingModeRTEFloat16": "rounding_rte_f16",
    "shaderRoundingModeRTEFloat32": "rounding_rte_f32",
    "shaderRoundingModeRTEFloat64": "rounding_rte_f64",
}

# VkComponentTypeKHR.
_COMPONENTS = {
    0: "float16",
    1: "float32",
    2: "float64",
    3: "int8",
    4: "int16",
    5: "int32",
    6: "int64",
    7: "uint8",
    8: "uint16",
    9: "uint32",
    10: "uint64",
    1000141000: "bfloat16",
    1000491002: "float8_e4m3",
    1000491003: "float8_e5m2",
}

# VkScopeKHR.
_SCOPES = {1: "device", 2: "workgroup", 3: "subgroup", 5: "queue_family"}


def list_devices() -> tuple[DeviceInfo, ...]:
    """Every device the loader shows, in its order, usable or not (see `DeviceInfo.missing`).

    Raises:
        NoDeviceError: no loader or no driver on this machine.
    """
    return tuple(info for _, info in enumerate_devices(instance()))


def enumerate_devices(owner: Instance) -> list[tuple[Any, DeviceInfo]]:
    """(VkPhysicalDevice, DeviceInfo) of every device of an instance, with the overrides of VKINDUCTOR_LIMITS
    applied.
    """
    ffi, lib = owner.ffi, owner.lib
    count = ffi.new("uint32_t *")
    check(lib.vkEnumeratePhysicalDevices(owner.handle, count, ffi.NULL), "vkEnumeratePhysicalDevices")
    handles = ffi.new("VkPhysicalDevice[]", max(count[0], 1))
    check(lib.vkEnumeratePhysicalDevices(owner.handle, count, handles), "vkEnumeratePhysicalDevices")
    return [(handles[i], _Reader(owner, handles[i]).read(i)) for i in range(count[0])]


def compute_queue_family(owner: Instance, handle: Any) -> tuple[int, int] | None:
    """(family index, timestamp bits) of the queue family to use, or None.

    A family without graphics is preferred: a desktop's compositor then never waits for us. On an H100 (driver 580)
    it also answers a submit and wait a little sooner, 30-38 us against 40-43; kernels run equally fast.
    """
    ffi, lib = owner.ffi, owner.lib
    count = ffi.new("uint32_t *")
    lib.vkGetPhysicalDeviceQueueFamilyProperties(handle, count, ffi.NULL)
    families = ffi.new("VkQueueFamilyProperties[]", max(count[0], 1))
    lib.vkGetPhysicalDeviceQueueFamilyProperties(handle, count, families)
    usable = [i for i in range(count[0]) if families[i].queueFlags & _QUEUE_COMPUTE and families[i].queueCount]
    if not usable:
        return None
    best = min(usable, key=lambda i: bool(families[i].queueFlags & _QUEUE_GRAPHICS))
    return best, families[best].timestampValidBits


class _Reader:
    """Reads one physical device."""

    def __init__(self, owner: Instance, handle: Any) -> None:
        self.owner, self.handle = owner, handle
        self.ffi, self.lib = owner.ffi, owner.lib

    def read(self, index: int) -> DeviceInfo:
        ffi = self.ffi
        basic = ffi.new("VkPhysicalDeviceProperties *")
        self.lib.vkGetPhysicalDeviceProperties(self.handle, basic)
        version = basic.apiVersion
        api = (version >> 22, (version >> 12) & 0x3FF, version & 0xFFF)
        name = ffi.string(basic.deviceName).decode(errors="replace")
        kind = KINDS.get(int(basic.deviceType), "other")
        if api[:2] < (1, 2) or self.owner.api_version < (1, 2):
            # The structures below do not exist before 1.2, and such a device is of no use to us.
            missing = missing_requirements(api, Features())
            return DeviceInfo(index, name, kind, api_version=api, missing=missing)
        usable = min(api[:2], self.owner.api_version)
        extensions = self._extensions()
        p11, p12, p13, dot, late = self._properties(usable, extensions)
        heaps, types = self._memory()
        queue = compute_queue_family(self.owner, self.handle)
        limits = self._limits(basic.limits, p11, p13, queue[1] if queue else 0)
        driver, driver_info = (ffi.string(text).decode(errors="replace") for text in (p12.driverName, p12.driverInfo))
        limits = dataclasses.replace(limits, max_loop_iterations=known(driver, driver_info).max_loop_iterations)
        features = self._features(usable, extensions, p11, p12, dot)
        limits, features = apply_overrides(limits, features, env.limits())
        return DeviceInfo(
            index=index,
            name=name,
            kind=kind,
            uuid=bytes(ffi.buffer(p11.deviceUUID)).hex(),
            vendor_id=basic.vendorID,
            device_id=basic.deviceID,
            driver_name=driver,
            driver_version=basic.driverVersion,
            driver_info=driver_info,
            driver_uuid=bytes(ffi.buffer(p11.driverUUID)).hex(),
            pipeline_uuid=bytes(ffi.buffer(basic.pipelineCacheUUID)).hex(),
            api_version=api,
            limits=limits,
            features=features,
            heaps=heaps,
            memory_types=types,
            unified_memory=kind in ("integrated", "cpu") and self._host_sees_everything(heaps, types),
            extensions=extensions,
            cooperative_shapes=self._cooperative_shapes(features),
            max_cooperative_workgroup=late.cooperativeMatrixWorkgroupScopeMaxWorkgroupSize if late else 0,
            missing=missing_requirements(api, features, queue is not None),
        )

    def _extensions(self) -> frozenset[str]:
        ffi, call = self.ffi, self.lib.vkEnumerateDeviceExtensionProperties
        count = ffi.new("uint32_t *")
        check(call(self.handle, ffi.NULL, count, ffi.NULL), "vkEnumerateDeviceExtensionProperties")
        items = ffi.new("VkExtensionProperties[]", max(count[0], 1))
        check(call(self.handle, ffi.NULL, count, items), "vkEnumerateDeviceExtensionProperties")
        return frozenset(ffi.string(items[i].extensionName).decode() for i in range(count[0]))

    def _properties(self, api: tuple[int, int], extensions: frozenset[str]) -> tuple[Any, Any, Any, Any, Any]:
        """Vulkan 1.1, 1.2, 1.3 (or None), integer-dot-product (or None) and cooperative-matrix-2 (or None) property
        structures."""
        ffi = self.ffi
        p11 = ffi.new("VkPhysicalDeviceVulkan11Properties *")
        p11.sType = 50
        p12 = ffi.new("VkPhysicalDeviceVulkan12Properties *")
        p12.sType, p12.pNext = 52, p11
        head, p13, dot, late = p12, None, None, None
        if api >= (1, 3):
            p13 = ffi.new("VkPhysicalDeviceVulkan13Properties *")
            p13.sType, p13.pNext = 54, head
            head = p13
        elif "VK_EXT_subgroup_size_control" in extensions:
            p13 = ffi.new("VkPhysicalDeviceSubgroupSizeControlProperties *")
            p13.sType, p13.pNext = 1000225000, head
            head = p13
        if api >= (1, 3) or "VK_KHR_shader_integer_dot_product" in extensions:
            dot = ffi.new("VkPhysicalDeviceShaderIntegerDotProductProperties *")
            dot.sType, dot.pNext = 1000280001, head
            head = dot
        if "VK_NV_cooperative_matrix2" in extensions:
            late = late_ffi().new("CooperativeMatrix2Properties *")
            late.sType = COOPERATIVE_MATRIX2_PROPERTIES
            late.pNext = late_ffi().cast("void *", int(ffi.cast("uintptr_t", head)))
            head = ffi.cast("void *", int(late_ffi().cast("uintptr_t", late)))
        properties = ffi.new("VkPhysicalDeviceProperties2 *")
        properties.sType, properties.pNext = 1000059001, head
        self.lib.vkGetPhysicalDeviceProperties2(self.handle, properties)
        return p11, p12, p13, dot, late

    def _limits(self, raw: Any, p11: Any, p13: Any, timestamp_bits: int) -> Limits:
        # maxBufferSize is Vulkan 1.3's; before that the allocation limit is the only statement.
        max_buffer = getattr(p13, "maxBufferSize", p11.maxMemoryAllocationSize)
        return Limits(
            max_workgroup_count=tuple(raw.maxComputeWorkGroupCount),
            max_workgroup_size=tuple(raw.maxComputeWorkGroupSize),
            max_workgroup_invocations=raw.maxComputeWorkGroupInvocations,
            max_shared_memory=raw.maxComputeSharedMemorySize,
            max_push_constants=raw.maxPushConstantsSize,
            max_memory_allocation=p11.maxMemoryAllocationSize,
            max_buffer_size=max_buffer,
            max_storage_range=raw.maxStorageBufferRange,
            min_storage_alignment=raw.minStorageBufferOffsetAlignment,
            non_coherent_atom_size=raw.nonCoherentAtomSize,
            max_allocation_count=raw.maxMemoryAllocationCount,
            timestamp_period_ns=raw.timestampPeriod,
            timestamp_valid_bits=timestamp_bits,
            subgroup_size=p11.subgroupSize,
            subgroup_size_min=p13.minSubgroupSize if p13 else p11.subgroupSize,
            subgroup_size_max=p13.maxSubgroupSize if p13 else p11.subgroupSize,
            max_compute_workgroup_subgroups=p13.maxComputeWorkgroupSubgroups if p13 else 1 << 30,
        )

    def _features(self, api: tuple[int, int], extensions: frozenset[str], p11: Any, p12: Any, dot: Any) -> Features:
        chain = FeatureChain(self.ffi, api, extensions)
        self.lib.vkGetPhysicalDeviceFeatures2(self.handle, chain.head)
        values = {field: chain.read(field) for field in MEMBERS}
        values |= {field: any(n in extensions for n in names) for field, names in EXTENSION_ONLY.items()}
        in_compute = bool(p11.subgroupSupportedStages & _COMPUTE_STAGE)
        operations = p11.subgroupSupportedOperations
        values |= {field: in_compute and bool(operations & bit) for bit, field in _SUBGROUP_BITS.items()}
        values |= {field: bool(getattr(p12, member)) for member, field in _FLOAT_CONTROLS.items()}
        accelerated = dot is not None and bool(dot.integerDotProduct4x8BitPackedSignedAccelerated)
        values["packed_dot_product_accelerated"] = values["integer_dot_product"] and accelerated
        return Features(**values, host_mapping=True)

    def _memory(self) -> tuple[tuple[Heap, ...], tuple[MemoryType, ...]]:
        raw = self.ffi.new("VkPhysicalDeviceMemoryProperties *")
        self.lib.vkGetPhysicalDeviceMemoryProperties(self.handle, raw)
        heaps = tuple(
            Heap(raw.memoryHeaps[i].size, bool(raw.memoryHeaps[i].flags & 1)) for i in range(raw.memoryHeapCount)
        )
        types = tuple(
            MemoryType(raw.memoryTypes[i].propertyFlags, raw.memoryTypes[i].heapIndex)
            for i in range(raw.memoryTypeCount)
        )
        return heaps, types

    @staticmethod
    def _host_sees_everything(heaps: tuple[Heap, ...], types: tuple[MemoryType, ...]) -> bool:
        visible = {t.heap for t in types if t.flags & _DEVICE_LOCAL and t.flags & _HOST_VISIBLE}
        return bool(heaps) and all(i in visible for i, heap in enumerate(heaps) if heap.device_local)

    def _cooperative_shapes(self, features: Features) -> tuple[CooperativeShape, ...]:
        shapes: list[CooperativeShape] = []
        if features.cooperative_matrix:
            call = self.owner.function("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")
            shapes += self._shapes(call, self.ffi, "VkCooperativeMatrixPropertiesKHR", 1000506001, False)
        if features.cooperative_matrix2_flexible_dimensions:
            late = late_ffi()
            name = b"vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV"
            raw = self.lib.vkGetInstanceProcAddr(self.owner.handle, self.ffi.new("char[]", name))
            if raw != self.ffi.NULL:
                address = int(self.ffi.cast("uintptr_t", raw))
                call = late.cast("int(*)(void *, uint32_t *, FlexibleDimensions *)", address)
                shapes += self._shapes(call, late, "FlexibleDimensions", FLEXIBLE_DIMENSIONS_PROPERTIES, True)
        return tuple(shapes)

    def _shapes(self, call: Any, ffi: Any, ctype: str, stype: int, flexible: bool) -> list[CooperativeShape]:
        if call is None:
            return []
        handle = self.handle
        if flexible:
            handle = ffi.cast("void *", int(self.ffi.cast("uintptr_t", handle)))
        count = ffi.new("uint32_t *")
        check(call(handle, count, ffi.NULL), "querying cooperative matrix shapes")
        items = ffi.new(f"{ctype}[]", max(count[0], 1))
        for i in range(count[0]):
            items[i].sType = stype
        check(call(handle, count, items), "querying cooperative matrix shapes")
        suffix = "Granularity" if flexible else "Size"
        found = []
        for i in range(count[0]):
            item = items[i]
            types = [_COMPONENTS.get(int(getattr(item, f"{x}Type")), "unknown") for x in ("A", "B", "C", "Result")]
            found.append(
                CooperativeShape(
                    **{x.lower(): getattr(item, f"{x}{suffix}") for x in "MNK"},
                    a=types[0],
                    b=types[1],
                    c=types[2],
                    result=types[3],
                    scope=_SCOPES.get(int(item.scope), "other"),
                    saturating=bool(item.saturatingAccumulation),
                    flexible=flexible,
                    workgroup_size=item.workgroupInvocations if flexible else 0,
                )
            )
        return found
