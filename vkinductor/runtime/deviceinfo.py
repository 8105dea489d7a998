"""What is known about a device, as frozen dataclasses: limits, features, heaps. No Vulkan calls; `physical`
fills them.
"""

from __future__ import annotations

from dataclasses import dataclass

UNLIMITED = (1 << 32) - 1


@dataclass(frozen=True)
class Limits:
    """Numbers a kernel or an allocation must stay within. Sizes in bytes unless a name says otherwise."""

    max_workgroup_count: tuple[int, int, int] = (65535, 65535, 65535)
    max_workgroup_size: tuple[int, int, int] = (128, 128, 64)
    max_workgroup_invocations: int = 128
    max_shared_memory: int = 16384
    max_push_constants: int = 128
    max_memory_allocation: int = 1 << 30  # what is promised; larger ones are tried up to max_buffer_size
    max_buffer_size: int = 1 << 30
    max_storage_range: int = 1 << 27
    min_storage_alignment: int = 256
    non_coherent_atom_size: int = 256
    max_allocation_count: int = 4096
    timestamp_period_ns: float = 1.0  # nanoseconds a timestamp tick
    timestamp_valid_bits: int = 64  # of the compute queue; 0 means no timestamps
    subgroup_size: int = 1  # invocations, the default size
    subgroup_size_min: int = 1
    subgroup_size_max: int = 1
    max_compute_workgroup_subgroups: int = 1 << 30
    # Passes of all loops of an invocation together, past which the driver ends them (see codegen/loop_limit.py).
    max_loop_iterations: int = UNLIMITED


@dataclass(frozen=True)
class Features:
    """What the device offers and the runtime enables. Every field is a plain truth value."""

    # Required of a device (see `selection.REQUIRED`).
    int64: bool = False
    storage_8bit: bool = False
    storage_16bit: bool = False
    buffer_device_address: bool = False
    scalar_block_layout: bool = False
    timeline_semaphore: bool = False
    # Types in shaders.
    int8: bool = False
    int16: bool = False
    float16: bool = False
    float64: bool = False
    push_constant_8bit: bool = False
    push_constant_16bit: bool = False
    shader_bfloat16: bool = False
    bfloat16_dot_product: bool = False
    bfloat16_cooperative_matrix: bool = False
    integer_dot_product: bool = False
    # Of four signed bytes in a word, and no slower than its parts.
    packed_dot_product_accelerated: bool = False
    # Atomics on buffers, and on shared memory.
    int64_atomics: bool = False
    shared_int64_atomics: bool = False
    float32_atomics: bool = False
    float32_atomic_add: bool = False
    float64_atomic_add: bool = False
    float16_atomic_add: bool = False
    float32_atomic_minmax: bool = False
    shared_float32_atomics: bool = False
    shared_float32_atomic_add: bool = False
    # Subgroups.
    subgroup_vote: bool = False
    subgroup_arithmetic: bool = False
    subgroup_ballot: bool = False
    subgroup_shuffle: bool = False
    subgroup_shuffle_relative: bool = False
    subgroup_clustered: bool = False
    subgroup_extended_types: bool = False
    subgroup_size_control: bool = False
    compute_full_subgroups: bool = False
    subgroup_uniform_control_flow: bool = False
    maximal_reconvergence: bool = False
    # Memory.
    vulkan_memory_model: bool = False
    vulkan_memory_model_device_scope: bool = False
    workgroup_memory_explicit_layout: bool = False
    workgroup_memory_explicit_layout_scalar: bool = False
    workgroup_memory_explicit_layout_8bit: bool = False
    workgroup_memory_explicit_layout_16bit: bool = False
    zero_initialize_workgroup_memory: bool = False
    # Matrices. cooperative_matrix2 is the NVIDIA extension; its parts are separate.
    cooperative_matrix: bool = False
    cooperative_matrix2: bool = False
    cooperative_matrix2_flexible_dimensions: bool = False
    cooperative_matrix2_reductions: bool = False
    cooperative_matrix2_conversions: bool = False
    cooperative_matrix2_per_element: bool = False
    cooperative_matrix2_tensor_addressing: bool = False
    cooperative_matrix2_block_loads: bool = False
    # How arithmetic behaves when a shader asks for it (float controls).
    signed_zero_inf_nan_preserve_f16: bool = False
    signed_zero_inf_nan_preserve_f32: bool = False
    signed_zero_inf_nan_preserve_f64: bool = False
    denorm_preserve_f16: bool = False
    denorm_preserve_f32: bool = False
    denorm_flush_to_zero_f32: bool = False
    rounding_rte_f16: bool = False
    rounding_rte_f32: bool = False
    rounding_rte_f64: bool = False
    # The driver.
    maintenance4: bool = False
    synchronization2: bool = False
    pipeline_executable_info: bool = False
    calibrated_timestamps: bool = False
    memory_budget: bool = False
    # Whether tensor memory is mapped where the driver allows it; off, every copy is staged as on a card
    # without resizable BAR.
    host_mapping: bool = False


@dataclass(frozen=True)
class Heap:
    """One memory heap: size in bytes, and whether it is the device's own memory."""

    size: int
    device_local: bool


@dataclass(frozen=True)
class MemoryType:
    """One memory type: VkMemoryPropertyFlags and the index of its heap."""

    flags: int
    heap: int


@dataclass(frozen=True)
class CooperativeShape:
    """A matrix product the hardware does: D[m,n] = A[m,k] * B[k,n] + C[m,n].

    a, b, c, result: component types ("float16", "float32", "bfloat16", "int8", "uint8", "int32", ...). scope:
    "subgroup" or "workgroup". With `flexible`, m, n, k are granularities instead of sizes, for workgroups of
    `workgroup_size` invocations (0: any).
    """

    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    result: str
    scope: str
    saturating: bool = False
    flexible: bool = False
    workgroup_size: int = 0


@dataclass(frozen=True)
class DeviceInfo:
    """A device as the driver describes it. kind: "discrete", "integrated", "virtual", "cpu" or "other".

    uuid: 32 hexadecimal digits. unified_memory: every device-local byte can be mapped by the host and there
    is no other memory (integrated GPUs and CPU drivers). missing: what the runtime requires and the device
    lacks, in words.
    """

    index: int
    name: str
    kind: str
    uuid: str = ""
    vendor_id: int = 0
    device_id: int = 0
    driver_name: str = ""
    driver_version: int = 0
    driver_info: str = ""
    driver_uuid: str = ""
    pipeline_uuid: str = ""  # pipelineCacheUUID, 32 hexadecimal digits
    api_version: tuple[int, int, int] = (1, 2, 0)
    limits: Limits = Limits()
    features: Features = Features()
    heaps: tuple[Heap, ...] = ()
    memory_types: tuple[MemoryType, ...] = ()
    unified_memory: bool = False
    extensions: frozenset[str] = frozenset()
    cooperative_shapes: tuple[CooperativeShape, ...] = ()
    max_cooperative_workgroup: int = 0  # invocations; cooperative_matrix2 at workgroup scope
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"[{self.index}] {self.name} ({self.kind}, {self.driver_name}, UUID {self.uuid})"
