"""Devices that are not here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from vkinductor.codegen import launch, scheduling
from vkinductor.codegen.gemm.quads import usual
from vkinductor.runtime import context
from vkinductor.runtime.deviceinfo import CooperativeShape, DeviceInfo
from vkinductor.runtime.matrix_components import Places, Sums

HALVES = ("float16", "bfloat16")


def card(**changes: Any) -> DeviceInfo:
    """A device with matrices of subgroups and workgroups, as NVIDIA's driver describes one."""
    info = context.get().info
    limits = dataclasses.replace(
        info.limits, subgroup_size=32, subgroup_size_min=32, subgroup_size_max=32, max_shared_memory=48 << 10,
        max_workgroup_invocations=1024, max_workgroup_size=(1024, 1024, 64),
    )  # fmt: skip
    features = dataclasses.replace(
        info.features, float16=True, shader_bfloat16=True, bfloat16_cooperative_matrix=True, vulkan_memory_model=True,
        cooperative_matrix=True, cooperative_matrix2=True, cooperative_matrix2_flexible_dimensions=True,
        cooperative_matrix2_tensor_addressing=True, cooperative_matrix2_per_element=True,
        cooperative_matrix2_conversions=True, compute_full_subgroups=True,
        vulkan_memory_model_device_scope=True,
    )  # fmt: skip
    shapes = [
        CooperativeShape(16, n, 16, half, half, "float32", "float32", "subgroup") for half in HALVES for n in (8, 16)
    ]
    flexible = [
        CooperativeShape(
            16, 16, 16, half, half, result, result, "workgroup", flexible=True, workgroup_size=threads
        )
        for half in HALVES
        for result in ("float32", "float16")[: 1 + (half == "float16")]
        for threads in (128, 256)
    ]  # fmt: skip
    values = {
        "kind": "discrete",
        "limits": limits,
        "features": features,
        "cooperative_shapes": (*shapes, *flexible),
        "max_cooperative_workgroup": 256,
    }
    return dataclasses.replace(info, **{**values, **changes})


class Components:
    """Of a card: where NVIDIA's driver has them."""

    def places(self, sums: Sums) -> Places | None:
        return usual(sums.rows, sums.columns, sums.threads)

    def prefetch(self, sums: Sequence[Sums]) -> None:
        """Nothing to wait for."""


def pretend(monkeypatch: pytest.MonkeyPatch, info: DeviceInfo) -> None:
    """Generate code for ``info`` as if it were the device's: nothing made so may run."""
    device = context.get()
    monkeypatch.setattr(device, "info", info)
    # What a card is asked by running a kernel there.
    monkeypatch.setitem(device.__dict__, "rounds_bfloat16", True)
    monkeypatch.setitem(device.__dict__, "components", Components())


def launched(monkeypatch: pytest.MonkeyPatch, info: DeviceInfo) -> list[launch.Kernel]:
    """Pretend to have ``info``; the kernels that programs define from now on, of which none is compiled or runs."""
    kernels: list[launch.Kernel] = []
    pretend(monkeypatch, info)
    monkeypatch.setattr(launch, "prefetch", kernels.append)
    monkeypatch.setattr(scheduling, "prefetch_definition", lambda *args: None)
    monkeypatch.setattr(launch.Kernel, "_first_run", lambda self, *args: None)
    return kernels
