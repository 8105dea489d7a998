"""Which Vulkan structure and member holds each feature, and the pNext chains that query and enable them.

Owns the tables; `physical` reads through them and `device` enables through them. Structures newer than the
binding (Vulkan 1.3.275) are declared here with cffi and chained by their numbers. A structure is chained only
when the driver has its extension or version: an unknown one in a chain is ignored at best.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

Version = tuple[int, int]

# Declared by number: the registry's names in comments.
LATE_DECLARATIONS = """
typedef struct { uint32_t sType; void *pNext;
    uint32_t cooperativeMatrixWorkgroupScope, cooperativeMatrixFlexibleDimensions,
             cooperativeMatrixReductions, cooperativeMatrixConversions, cooperativeMatrixPerElementOperations,
             cooperativeMatrixTensorAddressing, cooperativeMatrixBlockLoads; } CooperativeMatrix2Features;
typedef struct { uint32_t sType; void *pNext;
    uint32_t cooperativeMatrixWorkgroupScopeMaxWorkgroupSize,
             cooperativeMatrixFlexibleDimensionsMaxDimension,
             cooperativeMatrixWorkgroupScopeReservedSharedMemory; } CooperativeMatrix2Properties;
typedef struct { uint32_t sType; void *pNext;
    uint32_t MGranularity, NGranularity, KGranularity, AType, BType, CType, ResultType,
             saturatingAccumulation, scope, workgroupInvocations; } FlexibleDimensions;
typedef struct { uint32_t sType; void *pNext;
    uint32_t shaderBFloat16Type, shaderBFloat16DotProduct, shaderBFloat16CooperativeMatrix;
} BFloat16Features;
typedef struct { uint32_t sType; void *pNext;
    uint32_t shaderMaximalReconvergence; } MaximalReconvergenceFeatures;
"""

COOPERATIVE_MATRIX2_PROPERTIES = 1000593002
FLEXIBLE_DIMENSIONS_PROPERTIES = 1000593001


@dataclass(frozen=True)
class StructSpec:
    """A feature structure: its C name, its VkStructureType, and when it may be chained.

    extension: the device extension it needs, if any. core_in: the version it needs. below: only chained under
    that version, because a promoted structure must not be chained beside the one that swallowed it.
    """

    ctype: str
    stype: int
    extension: str | None = None
    core_in: Version | None = None
    below: Version | None = None
    late: bool = False


STRUCTS: dict[str, StructSpec] = {
    "core": StructSpec("VkPhysicalDeviceFeatures2", 1000059000),
    "v11": StructSpec("VkPhysicalDeviceVulkan11Features", 49),
    "v12": StructSpec("VkPhysicalDeviceVulkan12Features", 51),
    "v13": StructSpec("VkPhysicalDeviceVulkan13Features", 53, core_in=(1, 3)),
    "subgroup_size": StructSpec(
        "VkPhysicalDeviceSubgroupSizeControlFeatures",
        1000225002,
        "VK_EXT_subgroup_size_control",
        below=(1, 3),
    ),
    "maintenance4": StructSpec("VkPhysicalDeviceMaintenance4Features", 1000413000, "VK_KHR_maintenance4", below=(1, 3)),
    "sync2": StructSpec(
        "VkPhysicalDeviceSynchronization2Features", 1000314007, "VK_KHR_synchronization2", below=(1, 3)
    ),
    "dot": StructSpec(
        "VkPhysicalDeviceShaderIntegerDotProductFeatures",
        1000280000,
        "VK_KHR_shader_integer_dot_product",
        below=(1, 3),
    ),
    "zero_init": StructSpec(
        "VkPhysicalDeviceZeroInitializeWorkgroupMemoryFeatures",
        1000325000,
        "VK_KHR_zero_initialize_workgroup_memory",
        below=(1, 3),
    ),
    "atomic_float": StructSpec(
        "VkPhysicalDeviceShaderAtomicFloatFeaturesEXT", 1000260000, "VK_EXT_shader_atomic_float"
    ),
    "atomic_float2": StructSpec(
        "VkPhysicalDeviceShaderAtomicFloat2FeaturesEXT", 1000273000, "VK_EXT_shader_atomic_float2"
    ),
    "cooperative": StructSpec("VkPhysicalDeviceCooperativeMatrixFeaturesKHR", 1000506000, "VK_KHR_cooperative_matrix"),
    "cooperative2": StructSpec("CooperativeMatrix2Features", 1000593000, "VK_NV_cooperative_matrix2", late=True),
    "bfloat16": StructSpec("BFloat16Features", 1000141000, "VK_KHR_shader_bfloat16", late=True),
    "reconvergence": StructSpec(
        "MaximalReconvergenceFeatures", 1000434000, "VK_KHR_shader_maximal_reconvergence", late=True
    ),
    "uniform_flow": StructSpec(
        "VkPhysicalDeviceShaderSubgroupUniformControlFlowFeaturesKHR",
        1000323000,
        "VK_KHR_shader_subgroup_uniform_control_flow",
    ),
    "shared_layout": StructSpec(
        "VkPhysicalDeviceWorkgroupMemoryExplicitLayoutFeaturesKHR",
        1000336000,
        "VK_KHR_workgroup_memory_explicit_layout",
    ),
    "executable": StructSpec(
        "VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR",
        1000269000,
        "VK_KHR_pipeline_executable_properties",
    ),
}

# Field of Features -> the (structure, member) pairs that may hold it; the first one in the chain counts.
MEMBERS: dict[str, tuple[tuple[str, str], ...]] = {
    "int64": (("core", "shaderInt64"),),
    "int16": (("core", "shaderInt16"),),
    "float64": (("core", "shaderFloat64"),),
    "storage_16bit": (("v11", "storageBuffer16BitAccess"),),
    "push_constant_16bit": (("v11", "storagePushConstant16"),),
    "storage_8bit": (("v12", "storageBuffer8BitAccess"),),
    "push_constant_8bit": (("v12", "storagePushConstant8"),),
    "int8": (("v12", "shaderInt8"),),
    "float16": (("v12", "shaderFloat16"),),
    "buffer_device_address": (("v12", "bufferDeviceAddress"),),
    "scalar_block_layout": (("v12", "scalarBlockLayout"),),
    "timeline_semaphore": (("v12", "timelineSemaphore"),),
    "int64_atomics": (("v12", "shaderBufferInt64Atomics"),),
    "shared_int64_atomics": (("v12", "shaderSharedInt64Atomics"),),
    "subgroup_extended_types": (("v12", "shaderSubgroupExtendedTypes"),),
    "vulkan_memory_model": (("v12", "vulkanMemoryModel"),),
    "vulkan_memory_model_device_scope": (("v12", "vulkanMemoryModelDeviceScope"),),
    "subgroup_size_control": (("v13", "subgroupSizeControl"), ("subgroup_size", "subgroupSizeControl")),
    "compute_full_subgroups": (("v13", "computeFullSubgroups"), ("subgroup_size", "computeFullSubgroups")),
    "maintenance4": (("v13", "maintenance4"), ("maintenance4", "maintenance4")),
    "synchronization2": (("v13", "synchronization2"), ("sync2", "synchronization2")),
    "integer_dot_product": (("v13", "shaderIntegerDotProduct"), ("dot", "shaderIntegerDotProduct")),
    "zero_initialize_workgroup_memory": (
        ("v13", "shaderZeroInitializeWorkgroupMemory"),
        ("zero_init", "shaderZeroInitializeWorkgroupMemory"),
    ),
    "float32_atomics": (("atomic_float", "shaderBufferFloat32Atomics"),),
    "float32_atomic_add": (("atomic_float", "shaderBufferFloat32AtomicAdd"),),
    "float64_atomic_add": (("atomic_float", "shaderBufferFloat64AtomicAdd"),),
    "shared_float32_atomics": (("atomic_float", "shaderSharedFloat32Atomics"),),
    "shared_float32_atomic_add": (("atomic_float", "shaderSharedFloat32AtomicAdd"),),
    "float16_atomic_add": (("atomic_float2", "shaderBufferFloat16AtomicAdd"),),
    "float32_atomic_minmax": (("atomic_float2", "shaderBufferFloat32AtomicMinMax"),),
    "cooperative_matrix": (("cooperative", "cooperativeMatrix"),),
    "cooperative_matrix2": (("cooperative2", "cooperativeMatrixWorkgroupScope"),),
    "cooperative_matrix2_flexible_dimensions": (("cooperative2", "cooperativeMatrixFlexibleDimensions"),),
    "cooperative_matrix2_reductions": (("cooperative2", "cooperativeMatrixReductions"),),
    "cooperative_matrix2_conversions": (("cooperative2", "cooperativeMatrixConversions"),),
    "cooperative_matrix2_per_element": (("cooperative2", "cooperativeMatrixPerElementOperations"),),
    "cooperative_matrix2_tensor_addressing": (("cooperative2", "cooperativeMatrixTensorAddressing"),),
    "cooperative_matrix2_block_loads": (("cooperative2", "cooperativeMatrixBlockLoads"),),
    "shader_bfloat16": (("bfloat16", "shaderBFloat16Type"),),
    "bfloat16_dot_product": (("bfloat16", "shaderBFloat16DotProduct"),),
    "bfloat16_cooperative_matrix": (("bfloat16", "shaderBFloat16CooperativeMatrix"),),
    "maximal_reconvergence": (("reconvergence", "shaderMaximalReconvergence"),),
    "subgroup_uniform_control_flow": (("uniform_flow", "shaderSubgroupUniformControlFlow"),),
    "workgroup_memory_explicit_layout": (("shared_layout", "workgroupMemoryExplicitLayout"),),
    "workgroup_memory_explicit_layout_scalar": (("shared_layout", "workgroupMemoryExplicitLayoutScalarBlockLayout"),),
    "workgroup_memory_explicit_layout_8bit": (("shared_layout", "workgroupMemoryExplicitLayout8BitAccess"),),
    "workgroup_memory_explicit_layout_16bit": (("shared_layout", "workgroupMemoryExplicitLayout16BitAccess"),),
    "pipeline_executable_info": (("executable", "pipelineExecutableInfo"),),
}

# Features that are an extension and nothing else; the first one the driver has is enabled.
EXTENSION_ONLY: dict[str, tuple[str, ...]] = {
    "memory_budget": ("VK_EXT_memory_budget",),
    "calibrated_timestamps": ("VK_KHR_calibrated_timestamps", "VK_EXT_calibrated_timestamps"),
}

# A driver that has one of these requires it to be enabled.
ALWAYS_ENABLED = ("VK_KHR_portability_subset",)


@cache
def late_ffi() -> Any:
    """The cffi object that knows `LATE_DECLARATIONS`; its pointers are passed on as void*."""
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(LATE_DECLARATIONS)
    return ffi


def _void(owner: Any, target: Any) -> Any:
    """`target` as a void* of the cffi object `owner`: pointers of different cffi objects do not mix."""
    return owner.cast("void *", int(owner.cast("uintptr_t", target)))


class FeatureChain:
    """A linked list of feature structures for a device of this version and these extensions."""

    def __init__(self, ffi: Any, api: Version, extensions: frozenset[str]) -> None:
        self._ffi = ffi
        self.structs: dict[str, Any] = {}
        for key, spec in STRUCTS.items():
            if spec.below is not None and api >= spec.below:
                continue
            if spec.core_in is not None and api < spec.core_in:
                continue
            if spec.extension is not None and spec.extension not in extensions:
                continue
            struct = self._owner(key).new(f"{spec.ctype} *")
            struct.sType = spec.stype
            self.structs[key] = struct
        self.head = self.structs["core"]
        self._link([key for key in self.structs if key != "core"])

    def _owner(self, key: str) -> Any:
        return late_ffi() if STRUCTS[key].late else self._ffi

    def _link(self, keys: list[str]) -> None:
        previous = self._ffi.NULL
        for key in [*keys, "core"]:
            self.structs[key].pNext = _void(self._owner(key), previous)
            previous = self.structs[key]

    def _locate(self, field: str) -> tuple[str, Any, str] | None:
        for key, member in MEMBERS[field]:
            if key in self.structs:
                struct = self.structs[key]
                return key, (struct.features if key == "core" else struct), member
        return None

    def read(self, field: str) -> bool:
        """The value of a Features field in the chain; False when its structure is not there."""
        found = self._locate(field)
        return bool(found and getattr(found[1], found[2]))

    def enable(self, fields: list[str]) -> list[str]:
        """Set the members of these fields and unchain what holds none; returns the extensions to enable."""
        used = []
        for field in fields:
            found = self._locate(field)
            assert found is not None, field
            setattr(found[1], found[2], 1)
            used.append(found[0])
        keys = [key for key in self.structs if key in used and key != "core"]
        self._link(keys)
        return [extension for key in keys if (extension := STRUCTS[key].extension) is not None]
