"""Launching a generated kernel: tensors in, one dispatch out.

Generated wrappers define ``Kernel`` objects at import and call ``run`` on the hot path. A kernel is compiled
when it first runs. What the stream needs to find hazards is the byte range behind each tensor argument.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, cast

import torch

from vkinductor.runtime import context
from vkinductor.runtime.abi import ArgumentLayout
from vkinductor.runtime.grid import fold
from vkinductor.runtime.pipeline import KernelSource

from .prefetch import prefetch


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

    ``fields`` are the argument block's fields in call order; ``writes`` the pointers written; ``nbytes`` the bytes
    behind each field where they are known when the kernel is generated (None otherwise);
    ``per_group`` items of x a workgroup covers; ``subgroup_size`` of full subgroups, where it needs them; ``turns``:
    pointers into memory of which each launch takes the next part of so many bytes, from the first one on when all have
    had their turn.
    """

    __slots__ = ("fields", "glsl", "name", "nbytes", "per_group", "run", "subgroup_size", "turns", "writes")

    run: Callable[..., None]

    def __init__(
        self,
        name: str,
        *,
        fields: tuple[tuple[str, str], ...],
        writes: tuple[str, ...],
        nbytes: tuple[int | None, ...],
        per_group: int,
        glsl: str,
        subgroup_size: int | None = None,
        turns: tuple[tuple[str, int], ...] = (),
    ) -> None:
        self.name = name
        self.fields = fields
        self.writes = writes
        self.nbytes = nbytes
        self.per_group = per_group
        self.glsl = glsl
        self.subgroup_size = subgroup_size
        self.turns = dict(turns)
        self.run = self._first_run
        prefetch(self)

    def _first_run(self, *args: Any) -> None:
        """Launch over ``args``: one value a field, then the number of items of x.

        Tensor arguments must live on the device (or be zero-dimensional CPU tensors where the field is a scalar).
        Returns at once; the stream keeps the order. Raises ShaderCompileError when the kernel does not compile.
        """
        self.run = self._build()
        self.run(*args)

    def source(self) -> KernelSource:
        """What the runtime compiles."""
        layout = ArgumentLayout(self.fields)
        info = context.get().info
        return KernelSource(
            name=self.name,
            glsl=self.glsl,
            layout=layout,
            inline_args=layout.inline(info.limits),
            subgroup_size=self.subgroup_size,
            full_subgroups=self.subgroup_size is not None and info.features.compute_full_subgroups,
        )

    def _build(self) -> Callable[..., None]:
        device = context.get()
        pipeline = device.pipelines.get(self.source())
        limits, per_group = device.info.limits, self.per_group

        @functools.lru_cache(maxsize=64)
        def groups(items: int) -> tuple[int, int, int]:
            return fold(-(-items // per_group), limits)

        names: dict[str, Any] = {
            "pipeline": pipeline,
            "pack": pipeline.pack,
            "dispatch": device.stream.dispatch,
            "groups": groups,
            "byte_range": byte_range,
            "Tensor": torch.Tensor,
        }
        for (name, _), nbytes in zip(self.fields, self.nbytes, strict=True):
            if name in self.turns and nbytes is not None:
                part = self.turns[name]
                names[f"next_{name}"] = itertools.cycle(range(0, nbytes - part + 1, part)).__next__
        # One straight function instead of a loop over the fields: this runs once for each kernel of each call.
        exec(self._launcher(), names)
        return cast(Callable[..., None], names["launch"])

    def _launcher(self) -> str:
        lines: list[str] = []
        values: list[str] = []
        reads: list[str] = []
        writes: list[str] = []
        for i, ((name, kind), nbytes) in enumerate(zip(self.fields, self.nbytes, strict=True)):
            if kind != "ptr":
                values.append(f"a{i}.item() if isinstance(a{i}, Tensor) else a{i}")
                continue
            place = f"(p{i}, {nbytes})" if nbytes is not None else f"r{i}"
            lines.append(
                f"p{i} = a{i}.data_ptr()" if nbytes is not None else f"r{i} = byte_range(a{i}); p{i} = r{i}[0]"
            )
            if nbytes is not None and name in self.turns:
                place = f"(p{i}, {self.turns[name]})"
                lines[-1] += f" + next_{name}()"
            values.append(f"p{i}")
            (writes if name in self.writes else reads).append(place)
        parameters = ", ".join([*(f"a{i}" for i in range(len(self.fields))), "items"])
        body = "\n    ".join(["if items <= 0: return", *lines])
        return (
            f"def launch({parameters}):\n    {body}\n    dispatch(pipeline, groups(items), pack({', '.join(values)}), "
            f"[{', '.join(reads)}], [{', '.join(writes)}])"
        )


def vulkan_kernel(name: str, **description: Any) -> Kernel:
    """What generated wrappers call to define a kernel; see ``Kernel``."""
    return Kernel(name, **description)
