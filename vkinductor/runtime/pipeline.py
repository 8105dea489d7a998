"""From GLSL to compute pipelines: the in-process cache, the SPIR-V cache on disk and the driver's pipeline
cache.

Owns VkPipeline and VkPipelineLayout objects. Compiling is `spirv`'s, storing `store`'s, rendering GLSL the
callers'.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vkinductor.runtime.abi import ArgumentLayout
from vkinductor.runtime.compile_threads import CompileThreads
from vkinductor.runtime.errors import (
    DEVICE_LOST,
    DeviceLostError,
    ShaderCompileError,
    UnsupportedError,
    VulkanError,
    check,
    result_name,
)
from vkinductor.runtime.spirv import Target
from vkinductor.runtime.spirv.interface import numbered
from vkinductor.runtime.stats import counters

if TYPE_CHECKING:
    from vkinductor.runtime.device import Device

_STAGE_COMPUTE = 0x20
_REQUIRE_FULL_SUBGROUPS = 0x2

# The driver's cache is saved after this many new pipelines, at most once in so many seconds, and at the end.
_SAVE_EVERY = 32
_SAVE_INTERVAL_S = 10.0

# VkPipelineCacheHeaderVersionOne: length, version, vendor, device, UUID.
_CACHE_HEADER = struct.Struct("<IIII16s")


@dataclass(frozen=True)
class KernelSource:
    """Everything a pipeline is made of.

    name: for people; sources that differ in nothing else share a pipeline. glsl: the whole compute shader;
    entry point main. layout: its arguments, declared by `layout.glsl(inline_args)`. inline_args: arguments
    are push constants; otherwise those hold the address of an argument block. specialization: (constant id,
    value) pairs; a bool or an int is 32 bits (64 when it does not fit), a float is 32. subgroup_size: the
    size the shader needs, None for the device's default. full_subgroups: every subgroup of a workgroup is
    full (its x size must be a multiple of the subgroup size).
    """

    name: str
    glsl: str
    layout: ArgumentLayout
    inline_args: bool = True
    specialization: tuple[tuple[int, int | float | bool], ...] = ()
    subgroup_size: int | None = None
    full_subgroups: bool = False

    def with_argument_block(self) -> KernelSource:
        """The same kernel reading its arguments from an argument block."""
        if not self.inline_args or not self.layout.fields:
            return self
        declared = self.layout.glsl(inline=True)
        assert self.glsl.count(declared) == 1, f"{self.name} does not declare its arguments as its layout does"
        glsl = self.glsl.replace(declared, self.layout.glsl(inline=False))
        return dataclasses.replace(self, glsl=glsl, inline_args=False)


class Pipeline:
    """A pipeline ready to dispatch. pack: values of the arguments in declared order -> bytes for
    `Stream.dispatch`.
    """

    __slots__ = ("handle", "inline_args", "layout", "pack", "source")

    def __init__(self, source: KernelSource, handle: Any, layout: Any, pack: Callable[..., bytes]) -> None:
        self.source = source
        self.handle = handle
        self.layout = layout
        self.pack = pack
        self.inline_args = source.inline_args or not source.layout.fields


class PipelineCache:
    """All pipelines of a device, by content. Thread-safe: a source is compiled once, whoever asks for it and under
    whatever name; different sources are compiled at the same time."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._ffi, self._vk = device.ffi, device.vk
        self._lock = threading.RLock()
        self._pipelines: dict[KernelSource, Pipeline] = {}
        self._handles: dict[KernelSource, Future[Any]] = {}  # by source without its name; done or being made
        self.threads = CompileThreads()
        self._layouts: dict[int, Any] = {}
        self._cache: Any = None
        self._saved = b""
        self._new = 0
        self._saved_at = time.monotonic()
        info = device.info
        self.target = Target((1, 3) if min(info.api_version[:2], device.instance.api_version) >= (1, 3) else (1, 2))

    def get(self, source: KernelSource) -> Pipeline:
        """The pipeline of a source, compiled on its first request.

        Raises:
            ShaderCompileError: the compiler or the driver refused it; the message shows the numbered GLSL.
            UnsupportedError: arguments, subgroup size or specialization that the device cannot take.
        """
        pipeline = self._pipelines.get(source)
        if pipeline is None:
            handle, layout = self._built(source)
            pack = source.layout.packer(self._device.memory.bias)
            with self._lock:
                pipeline = self._pipelines.setdefault(source, Pipeline(source, handle, layout, pack))
        return pipeline

    def prefetch(self, source: KernelSource) -> None:
        """Start making the pipeline of a source on another thread, so that a later `get` need not. Returns at once.

        Raises nothing: what is wrong with the source is said by `get`.
        """
        device = self._device
        try:
            _ = device.store, device.compiler  # made on first use, by one thread
        except VulkanError:
            return
        if _nameless(source) not in self._handles:
            self.threads.submit(lambda: self._fetch(source))

    def _fetch(self, source: KernelSource) -> None:
        # `get` tries anew and raises.
        with contextlib.suppress(VulkanError):
            self._built(source)

    def _built(self, source: KernelSource) -> tuple[Any, Any]:
        """(pipeline, layout) of a source, made by this thread or by the one that is at it already."""
        key = _nameless(source)
        while True:
            with self._lock:
                future = self._handles.get(key)
                if future is None:
                    made = self._handles[key] = Future()
                    break
            try:
                built: tuple[Any, Any] = future.result()
                return built
            except Exception:  # the other thread's error may be about another name: this one has its own
                continue
        try:
            with self.threads.compiling():
                made.set_result(self._build(source))
        except BaseException as error:
            with self._lock:
                del self._handles[key]
            made.set_exception(error)
            raise
        built = made.result()
        return built

    def __len__(self) -> int:
        return len(self._pipelines)

    def spirv(self, source: KernelSource) -> bytes:
        """SPIR-V of a source: from the disk store, or compiled (and counted) and stored."""
        compiler = self._device.compiler
        key = hashlib.sha256(f"{compiler.key(self.target)}\0{source.glsl}".encode()).hexdigest()
        code = self._device.store.get("spirv", key)
        if code is None:
            with self._lock:
                counters.kernels_compiled += 1
            code = compiler.compile(source.glsl, name=source.name, target=self.target)
            self._device.store.put("spirv", key, code)
        return code

    def _build(self, source: KernelSource) -> tuple[Any, Any]:
        self._check(source)
        code = self.spirv(source)
        layout = self._layout(source.layout.nbytes if source.inline_args else min(source.layout.nbytes, 8))
        handle = self._create(source, code, layout)
        with self._lock:
            self._new += 1
            if self._new >= _SAVE_EVERY and time.monotonic() - self._saved_at > _SAVE_INTERVAL_S:
                self.save()
        return handle, layout

    def _check(self, source: KernelSource) -> None:
        info = self._device.info
        limits, features = info.limits, info.features
        if source.inline_args and not source.layout.inline(limits):
            raise UnsupportedError(
                f"kernel {source.name!r}: {source.layout.nbytes} bytes of arguments exceed the device's "
                f"{limits.max_push_constants} bytes of push constants: use inline_args=False"
            )
        size = source.subgroup_size
        if size is not None and not (size == limits.subgroup_size_min == limits.subgroup_size_max):
            valid = limits.subgroup_size_min <= size <= limits.subgroup_size_max and size & (size - 1) == 0
            if not (features.subgroup_size_control and valid):
                raise UnsupportedError(
                    f"kernel {source.name!r} wants subgroups of {size}; the device offers "
                    f"{limits.subgroup_size_min} to {limits.subgroup_size_max}"
                    f"{'' if features.subgroup_size_control else ' and no choice'}"
                )
        if source.full_subgroups and not features.compute_full_subgroups:
            raise UnsupportedError(f"kernel {source.name!r} wants full subgroups, which the device does not promise")

    def _layout(self, push_bytes: int) -> Any:
        with self._lock:
            return self._layout_locked(push_bytes)

    def _layout_locked(self, push_bytes: int) -> Any:
        layout = self._layouts.get(push_bytes)
        if layout is None:
            ffi = self._ffi
            info = ffi.new("VkPipelineLayoutCreateInfo *")
            info.sType = 30
            if push_bytes:
                pushed = ffi.new("VkPushConstantRange *")
                pushed.stageFlags, pushed.offset, pushed.size = _STAGE_COMPUTE, 0, push_bytes
                info.pushConstantRangeCount, info.pPushConstantRanges = 1, pushed
            out = ffi.new("VkPipelineLayout *")
            check(
                self._vk.vkCreatePipelineLayout(self._device.handle, info, ffi.NULL, out),
                "vkCreatePipelineLayout",
            )
            layout = self._layouts[push_bytes] = out[0]
        return layout

    def _create(self, source: KernelSource, code: bytes, layout: Any) -> Any:
        ffi, vk, handle = self._ffi, self._vk, self._device.handle
        words = ffi.new("uint32_t[]", len(code) // 4)
        ffi.memmove(words, code, len(code))
        module_info = ffi.new("VkShaderModuleCreateInfo *")
        module_info.sType, module_info.codeSize, module_info.pCode = 16, len(code), words
        module = ffi.new("VkShaderModule *")
        self._check_result(vk.vkCreateShaderModule(handle, module_info, ffi.NULL, module), source)
        entry = ffi.new("char[]", b"main")
        # Nested structures live in variables: cffi frees what nothing refers to.
        required = ffi.new("VkPipelineShaderStageRequiredSubgroupSizeCreateInfo *")
        specialization, kept = self._specialization(source)
        info = ffi.new("VkComputePipelineCreateInfo *")
        info.sType, info.layout, info.basePipelineIndex = 29, layout, -1
        info.stage.sType, info.stage.stage, info.stage.module, info.stage.pName = (
            18,
            _STAGE_COMPUTE,
            module[0],
            entry,
        )
        info.stage.pSpecializationInfo = specialization
        if source.subgroup_size is not None and self._device.info.features.subgroup_size_control:
            required.sType, required.requiredSubgroupSize = 1000225001, source.subgroup_size
            info.stage.pNext = required
        if source.full_subgroups:
            info.stage.flags = _REQUIRE_FULL_SUBGROUPS
        out = ffi.new("VkPipeline *")
        try:
            result = vk.vkCreateComputePipelines(handle, self._driver_cache(), 1, info, ffi.NULL, out)
            self._check_result(result, source)
        finally:
            vk.vkDestroyShaderModule(handle, module[0], ffi.NULL)
        del kept
        return out[0]

    def _check_result(self, result: int, source: KernelSource) -> None:
        if result == DEVICE_LOST:
            raise DeviceLostError(f"{self._device.info.name} was lost while compiling kernel {source.name!r}")
        if result < 0:
            compiler = self._device.compiler
            raise ShaderCompileError(
                f"{self._device.info} refused kernel {source.name!r} ({result_name(result)}), compiled by "
                f"{compiler.name} {compiler.version} for {self.target}; specialization "
                f"{source.specialization}:\n{numbered(source.glsl)}"
            )

    def _specialization(self, source: KernelSource) -> tuple[Any, list[Any]]:
        if not source.specialization:
            return self._ffi.NULL, []
        ffi = self._ffi
        data = b""
        entries = ffi.new("VkSpecializationMapEntry[]", len(source.specialization))
        for entry, (constant, value) in zip(entries, source.specialization, strict=True):
            packed = _pack_constant(value)
            entry.constantID, entry.offset, entry.size = constant, len(data), len(packed)
            data += packed
        raw = ffi.new("char[]", data)
        info = ffi.new("VkSpecializationInfo *")
        info.mapEntryCount, info.pMapEntries, info.dataSize, info.pData = (
            len(entries),
            entries,
            len(data),
            raw,
        )
        return info, [entries, raw]

    # The driver's own cache.

    def _blob_key(self) -> str:
        info = self._device.info
        return hashlib.sha256(
            f"{info.vendor_id}-{info.device_id}-{info.driver_version}-{info.uuid}-{info.driver_uuid}".encode()
        ).hexdigest()

    def _driver_cache(self) -> Any:
        with self._lock:
            return self._driver_cache_locked()

    def _driver_cache_locked(self) -> Any:
        if self._cache is None:
            ffi = self._ffi
            blob = self._device.store.get("pipeline", self._blob_key()) or b""
            if not self._fits(blob):
                blob = b""
            data = ffi.new("char[]", blob) if blob else ffi.NULL
            info = ffi.new("VkPipelineCacheCreateInfo *")
            info.sType, info.initialDataSize, info.pInitialData = 17, len(blob), data
            out = ffi.new("VkPipelineCache *")
            check(
                self._vk.vkCreatePipelineCache(self._device.handle, info, ffi.NULL, out),
                "vkCreatePipelineCache",
            )
            self._cache, self._saved = out[0], blob
        return self._cache

    def _fits(self, blob: bytes) -> bool:
        """Whether a blob's header names this device: drivers should check that themselves, and some crash
        instead.
        """
        if len(blob) < _CACHE_HEADER.size:
            return False
        length, version, vendor, device, uuid = _CACHE_HEADER.unpack_from(blob)
        info = self._device.info
        return (
            length >= _CACHE_HEADER.size
            and version == 1
            and (vendor, device) == (info.vendor_id, info.device_id)
            and uuid.hex() == info.pipeline_uuid
        )

    def save(self) -> None:
        """Write the driver's cache to the disk store if it has something new."""
        with self._lock:
            if self._cache is None or not self._new:
                return
            self._new, self._saved_at = 0, time.monotonic()
            ffi, call, handle = self._ffi, self._vk.vkGetPipelineCacheData, self._device.handle
            size = ffi.new("size_t *")
            if call(handle, self._cache, size, ffi.NULL) < 0 or size[0] <= _CACHE_HEADER.size:
                return
            data = ffi.new("char[]", size[0])
            if call(handle, self._cache, size, data) != 0:
                return
            blob = bytes(ffi.buffer(data, size[0]))
            if blob != self._saved:
                self._device.store.put("pipeline", self._blob_key(), blob)
                self._saved = blob

    def close(self) -> None:
        """Save the driver's cache and destroy every pipeline; the device must be idle or lost.

        Waits for threads that compile, and drops what has not begun.
        """
        self.threads.close()  # without the lock, which they take
        with self._lock:
            self.save()
            self._device.store.record_use()
            ffi, vk, handle = self._ffi, self._vk, self._device.handle
            for future in self._handles.values():
                vk.vkDestroyPipeline(handle, future.result()[0], ffi.NULL)
            for layout in self._layouts.values():
                vk.vkDestroyPipelineLayout(handle, layout, ffi.NULL)
            if self._cache is not None:
                vk.vkDestroyPipelineCache(handle, self._cache, ffi.NULL)
            self._pipelines.clear()
            self._handles.clear()
            self._layouts.clear()
            self._cache = None


def _nameless(source: KernelSource) -> KernelSource:
    return dataclasses.replace(source, name="")


def _pack_constant(value: int | float | bool) -> bytes:
    if isinstance(value, float):
        return struct.pack("<f", value)
    for layout, low, high in (("<i", -(1 << 31), 1 << 31), ("<I", 0, 1 << 32), ("<q", -(1 << 63), 1 << 63)):
        if low <= value < high:
            return struct.pack(layout, value)
    raise UnsupportedError(f"specialization constant {value} does not fit 64 bits")
