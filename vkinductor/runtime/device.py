"""A logical device: the VkDevice with one compute queue, and the parts of the runtime that live as long as it
does.

Owns creating them in order and closing them in reverse. Which device, and that there is only one, is
`context`'s.
"""

from __future__ import annotations

import contextlib
import threading
from functools import cached_property
from typing import Any

from vkinductor.runtime import bfloat16, env
from vkinductor.runtime.blocks import BlockFactory
from vkinductor.runtime.deviceinfo import DeviceInfo
from vkinductor.runtime.errors import DeviceLostError, UnsupportedError, VulkanError, check
from vkinductor.runtime.features import ALWAYS_ENABLED, EXTENSION_ONLY, MEMBERS, FeatureChain
from vkinductor.runtime.functions import Functions
from vkinductor.runtime.loader import Instance
from vkinductor.runtime.matrix_components import MatrixComponents
from vkinductor.runtime.memory import POISON_BIAS, Allocator
from vkinductor.runtime.physical import compute_queue_family
from vkinductor.runtime.pipeline import PipelineCache
from vkinductor.runtime.spirv import Compiler, find_compiler
from vkinductor.runtime.store import DiskStore
from vkinductor.runtime.stream import Stream


class Device:
    """An open device. Use `context.get()`; two at once in a process are not supported by the layers above."""

    info: DeviceInfo
    memory: Allocator
    stream: Stream
    pipelines: PipelineCache

    def __init__(self, instance: Instance, physical: Any, info: DeviceInfo) -> None:
        self.instance = instance
        self.physical = physical
        self.info = info
        self.ffi = instance.ffi
        self._lock = threading.RLock()
        self._closed = False
        family = compute_queue_family(instance, physical)
        if family is None:
            raise UnsupportedError(f"{info} has no compute queue")
        self.queue_family = family[0]
        self.handle = self._create(physical)
        self.vk = Functions(self.ffi, instance.lib, self.handle)
        queue = self.ffi.new("VkQueue *")
        self.vk.vkGetDeviceQueue(self.handle, self.queue_family, 0, queue)
        self.queue = queue[0]
        bias = POISON_BIAS if env.poison() else 0
        self.blocks = BlockFactory(self, bias)
        self.memory = Allocator(self.blocks, bias)
        self.pipelines = PipelineCache(self)
        self.stream = Stream(self)
        self.memory.synchronize = self._wait_for_memory

    @cached_property
    def compiler(self) -> Compiler:
        """The GLSL compiler, looked for on first use.

        Raises:
            UnsupportedError: none works; names what was tried.
        """
        return find_compiler(env.compiler())

    @cached_property
    def store(self) -> DiskStore:
        """The disk store under VKINDUCTOR_CACHE_DIR."""
        return DiskStore(env.cache_dir(), env.cache_limit())

    @cached_property
    def rounds_bfloat16(self) -> bool:
        """Whether its own conversions to bfloat16 are torch's, asked of it on first use (see `bfloat16`)."""
        return bfloat16.rounds(self)

    @cached_property
    def components(self) -> MatrixComponents:
        """Where it has the components of matrices, asked of it on first use."""
        return MatrixComponents(self)

    def _create(self, physical: Any) -> Any:
        ffi, info = self.ffi, self.info
        api = min(info.api_version[:2], self.instance.api_version)
        chain = FeatureChain(ffi, api, info.extensions)
        names = chain.enable([field for field in MEMBERS if getattr(info.features, field)])
        for field, alternatives in EXTENSION_ONLY.items():
            if getattr(info.features, field):
                names.append(next(name for name in alternatives if name in info.extensions))
        names += [name for name in ALWAYS_ENABLED if name in info.extensions]
        strings = [ffi.new("char[]", name.encode()) for name in names]
        array = ffi.new("char *[]", strings) if strings else ffi.NULL
        priority = ffi.new("float[1]", [1.0])
        queue = ffi.new("VkDeviceQueueCreateInfo *")
        queue.sType, queue.queueFamilyIndex, queue.queueCount, queue.pQueuePriorities = (
            2,
            self.queue_family,
            1,
            priority,
        )
        create = ffi.new("VkDeviceCreateInfo *")
        create.sType, create.pNext = 3, chain.head
        create.queueCreateInfoCount, create.pQueueCreateInfos = 1, queue
        create.enabledExtensionCount, create.ppEnabledExtensionNames = len(names), array
        out = ffi.new("VkDevice *")
        check(self.instance.lib.vkCreateDevice(physical, create, ffi.NULL, out), f"opening {info}")
        self.enabled_extensions = frozenset(names)
        return out[0]

    def _wait_for_memory(self) -> None:
        # A lost device uses no memory; blocks may then be released.
        if not isinstance(self.stream.failure, DeviceLostError):
            self.stream.synchronize()

    def synchronize(self) -> None:
        """Wait until everything recorded so far has finished."""
        self.stream.synchronize()

    def abandon(self, error: VulkanError) -> None:
        """After a fork, in the child: nothing here may be used or destroyed any more."""
        self._closed = True
        self.stream.abandon(error)
        self.memory.abandon()

    def close(self) -> None:
        """Wait for the device, save caches and destroy everything. Idempotent; never raises for a lost
        device.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(VulkanError):  # lost: there is nothing to wait for
                self.stream.synchronize()
            self.pipelines.close()
            self.stream.close()
            self.memory.close()
            self.vk.vkDestroyDevice(self.handle, self.ffi.NULL)
