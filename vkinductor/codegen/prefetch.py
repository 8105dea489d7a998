"""Compiling kernels before they are run: as soon as one is known its pipeline is made on another thread.

Owns when that is asked for. A kernel is known when Inductor has written it, while the rest of the graph is still being
lowered, and again when the generated program is loaded, which is all that happens when the graph comes from the cache.
Making pipelines, once each, is the runtime's; errors are those of the kernel's first run.
"""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

from vkinductor.runtime import context
from vkinductor.runtime.errors import VulkanError
from vkinductor.runtime.pipeline import KernelSource


class HasSource(Protocol):
    """What can be prefetched."""

    def source(self) -> KernelSource:
        """What the runtime compiles when this runs."""
        ...


def prefetch(kernel: HasSource) -> None:
    """Start compiling ``kernel``. Raises nothing, and does nothing while no device is open."""
    if context.is_open():
        with contextlib.suppress(VulkanError):
            context.get().pipelines.prefetch(kernel.source())


def prefetch_definition(definition: str, name: str) -> None:
    """The same for the expression that will define a kernel in a generated program (see ``KernelText.python``)."""
    from .launch import vulkan_kernel

    scope: dict[str, Any] = {"vulkan_kernel": vulkan_kernel, "KERNEL_NAME": name}
    eval(definition, scope)  # a Kernel prefetches itself
