"""Launching a generated kernel: tensors in, one dispatch out.

Generated wrappers define ``Kernel`` objects at import and call ``run`` on the hot path. A kernel is compiled
when it first runs. What the stream needs to find hazards is the byte range behind each tensor argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vkinductor.runtime import context
from vkinductor.runtime.abi import ArgumentLayout
from vkinductor.runtime.grid import fold
from vkinductor.runtime.pipeline import KernelSource


def byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    """(address, bytes) that a kernel may touch through ``tensor``: from its first to its last element."""
    if tensor.is_contiguous():
        return tensor.data_ptr(), tensor.nbytes
    reach = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if size == 0:
            return tensor.data_ptr(), 0
        reach += (size - 1) * stride
    return tensor.data_ptr(), reach * tensor.element_size()


class Kernel:
    """One GLSL kernel of a generated program.

    ``fields`` are the argument block's fields in call order; ``writes`` the pointers written;
    ``per_group`` items of x a workgroup covers.
    """

    __slots__ = ("_launch", "fields", "glsl", "name", "per_group", "writes")

    def __init__(
        self,
        name: str,
        *,
        fields: tuple[tuple[str, str], ...],
        writes: tuple[str, ...],
        per_group: int,
        glsl: str,
    ) -> None:
        self.name = name
        self.fields = fields
        self.writes = writes
        self.per_group = per_group
        self.glsl = glsl
        self._launch: Callable[..., None] | None = None

    def run(self, *args: Any) -> None:
        """Launch over ``args``: one value a field, then the number of items of x.

        Tensor arguments must live on the device (or be zero-dimensional CPU tensors where the field is a
        scalar). Returns at once; the stream keeps the order.
        """
        launch = self._launch
        if launch is None:
            launch = self._launch = self._build()
        launch(*args)

    def _build(self) -> Callable[..., None]:
        device = context.get()
        layout = ArgumentLayout(self.fields)
        inline = layout.inline(device.info.limits)
        source = KernelSource(name=self.name, glsl=self.glsl, layout=layout, inline_args=inline)
        pipeline = device.pipelines.get(source)
        pack = pipeline.pack
        dispatch = device.stream.dispatch
        limits = device.info.limits
        per_group = self.per_group
        kinds = tuple(kind for _, kind in self.fields)
        written = tuple(kind == "ptr" and name in self.writes for name, kind in self.fields)

        def launch(*args: Any) -> None:
            items = args[-1]
            if items <= 0:
                return
            values: list[Any] = []
            reads: list[tuple[int, int]] = []
            writes: list[tuple[int, int]] = []
            for value, kind, writing in zip(args, kinds, written, strict=False):
                if kind == "ptr":
                    place = byte_range(value)
                    (writes if writing else reads).append(place)
                    values.append(place[0])
                else:
                    values.append(value.item() if isinstance(value, torch.Tensor) else value)
            dispatch(pipeline, fold(-(-items // per_group), limits), pack(*values), reads, writes)

        return launch


def vulkan_kernel(name: str, **description: Any) -> Kernel:
    """What generated wrappers call to define a kernel; see ``Kernel``."""
    return Kernel(name, **description)
