"""What Inductor's graph caches must know of this package: which code wrote a cached graph, and for which device.

Inductor asks every backend's graph pass for an identity and hashes it. The pass here runs those of `passes`; its
identity is the package's code, the device with its limits and features, the GLSL compiler, the operators that users
have registered, and what tuning has found.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphModulePass

from vkinductor.device.registry import registry
from vkinductor.runtime import context

from . import passes, tuning

# The parts of the package that decide what generated code looks like and what it calls.
_WRITERS = (
    "codegen",
    "templates",
    "offload",
    "runtime/abi.py",
    "runtime/grid.py",
    "runtime/matrix_components.py",
    "runtime/pipeline.py",
    "runtime/spirv/float_controls.py",
    "device/storage.py",
    # What the graph passes and the lowerings of our own operators know of these.
    "device/attention.py",
    "device/attention_step.py",
    "device/fused_linear.py",
    "device/linear_argmax.py",
    "device/quantized.py",
    "device/sampling.py",
)


class CacheKey(CustomGraphModulePass):
    """The device's graph passes, and the name of all that generated code depends on."""

    def __call__(self, graph: torch.fx.GraphModule) -> None:
        passes.run(graph)

    def uuid(self) -> Any:
        """The identity; the device's part is empty as long as none is open (then no graph is for it)."""
        return (code_version(), device_version() if context.is_open() else "", users_version(), tuning.fingerprint())


@functools.cache
def code_version() -> str:
    """Version of the package and hash of the sources that write code."""
    import vkinductor

    return hash_of(Path(vkinductor.__file__).parent, vkinductor.__version__)


def hash_of(root: Path, version: str) -> str:
    """Hash of a version and of the sources that write code in the package at ``root``."""
    digest = hashlib.sha256(version.encode())
    for writer in _WRITERS:
        path = root / writer
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in (".py", ".jinja", ".glsl"):
                digest.update(file.relative_to(root).as_posix().encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()


def users_version() -> str:
    """Hash of the operators that users have registered; "" without any."""
    parts = sorted((name, operator.identity) for name, operator in registry.operators.items())
    return hashlib.sha256(repr(parts).encode()).hexdigest() if parts else ""


def device_version() -> str:
    """Hash of everything about the open device that generated code may depend on."""
    device = context.get()
    info = device.info
    parts = (
        info.name, info.uuid, info.vendor_id, info.device_id, info.driver_name, info.driver_version, info.driver_info,
        info.api_version, info.limits, info.features, device.compiler.key(),
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()
