"""Inductor IR to Vulkan: an out-of-tree Inductor backend that writes GLSL compute shaders.

``register()`` tells Inductor and Dynamo about the device; everything else is called by Inductor.
"""

from __future__ import annotations

import functools


@functools.cache
def register() -> None:
    """Register scheduling, wrapper, device interface and passes for device "vulkan". Idempotent; imports Inductor."""
    from torch._dynamo.device_interface import register_interface_for_device
    from torch._inductor.codegen.common import (
        get_device_op_overrides,
        register_backend_for_device,
        register_device_op_overrides,
    )

    from vkinductor.runtime import context

    from . import (
        compat,
        graph_cache,
        heuristics,
        long_scans,
        lowerings,
        mixed_reductions,
        online_softmax,
        shapes,
        splits,
        tuning,
        unsupported,
    )
    from .cache_key import CacheKey
    from .interface import VulkanInterface
    from .scheduling import VulkanScheduling
    from .wrapper import VulkanDeviceOps, VulkanWrapper

    compat.check()
    compat.add_settings()
    compat.mark_extern_calls("vulkan")
    compat.make_dtype_rules_once()
    compat.hide_from_dynamo()
    graph_cache.install()
    compat.treat_as_gpu("vulkan")
    compat.partition_kernels("vulkan")
    compat.decide_layouts("vulkan", lambda: heuristics.convolution_products(context.get().info))
    compat.save_strides_that_vary("vulkan")
    compat.replace_scans("vulkan", long_scans.create)
    compat.compare_any_strides()
    compat.reindex_what_is_shared("vulkan")
    compat.spell_lengths_alike("vulkan")
    compat.keep_guards_apart()
    compat.serve_flex_attention("vulkan")
    register_interface_for_device("vulkan", VulkanInterface)
    register_interface_for_device("vulkan:0", VulkanInterface)
    get_device_op_overrides("cpu")  # torch 2.11 loads those of its own devices only while the table is empty
    register_device_op_overrides("vulkan", VulkanDeviceOps())
    register_backend_for_device("vulkan", VulkanScheduling, VulkanWrapper, device_custom_pass=CacheKey())
    lowerings.register()
    shapes.register()
    unsupported.register()
    online_softmax.register()
    tuning.install()
    splits.register()
    mixed_reductions.register()
