"""Small kernels and host arrays for the runtime's tests. Nothing here imports torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from vkinductor.runtime.abi import EXTENSIONS, ArgumentLayout
from vkinductor.runtime.grid import LINEAR_GROUP_ID
from vkinductor.runtime.pipeline import KernelSource

LOCAL = 64
SCALE_ADD = ArgumentLayout((("n", "u32"), ("x", "ptr"), ("y", "ptr"), ("scale", "f32"), ("bias", "f32")))


def shader(layout: ArgumentLayout, body: str, inline: bool = True, more: str = "", local: int = LOCAL) -> str:
    """A compute shader with one float buffer type `F` and the linear invocation id `i`."""
    return (
        "#version 460\n"
        + "".join(f"#extension {name} : require\n" for name in EXTENSIONS)
        + f"{more}\nlayout(local_size_x = {local}) in;\n"
        + "layout(buffer_reference, scalar, buffer_reference_align = 4) buffer F { float v[]; };\n"
        + layout.glsl(inline)
        + f"void main() {{\n    uint i = {LINEAR_GROUP_ID} * {local}u + gl_LocalInvocationID.x;\n{body}\n}}\n"
    )


def scale_add(inline: bool = True) -> KernelSource:
    """y[i] = x[i] * scale + bias for i < n."""
    body = "    if (i < ARG.n) F(ARG.y).v[i] = F(ARG.x).v[i] * ARG.scale + ARG.bias;"
    name = "scale_add" if inline else "scale_add_block"
    return KernelSource(name, shader(SCALE_ADD, body, inline), SCALE_ADD, inline_args=inline)


def upload(device, array: np.ndarray) -> int:
    """A new allocation that holds `array`."""
    array = np.ascontiguousarray(array)
    address = device.memory.allocate(array.nbytes)
    device.stream.upload(address, array.ctypes.data, array.nbytes)
    return address


def download(device, address: int, count: int, dtype=np.float32) -> np.ndarray:
    """`count` elements at an address."""
    out = np.zeros(count, dtype)
    device.stream.download(out.ctypes.data, address, out.nbytes)
    return out


def run_scale_add(device, x: int, y: int, n: int, scale=1.0, bias=0.0, inline=True) -> None:
    """Dispatch `scale_add` over n floats, with exact ranges."""
    pipeline = device.pipelines.get(scale_add(inline))
    args = pipeline.pack(n, x, y, scale, bias)
    groups = (-(-n // LOCAL), 1, 1)
    device.stream.dispatch(pipeline, groups, args, ((x, 4 * n),), ((y, 4 * n),))


# The package without its __init__, which imports torch: the runtime must do without, and starts in a tenth of
# the time.
_BARE_PACKAGE = """
import sys, types
sys.modules["vkinductor"] = types.ModuleType("vkinductor")
sys.modules["vkinductor"].__path__ = [{path!r}]
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    """Run code in a fresh interpreter that has the runtime but no torch, with these variables added."""
    prelude = _BARE_PACKAGE.format(path=str(Path(__file__).parents[2] / "vkinductor"))
    return subprocess.run(
        [sys.executable, "-c", prelude + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="session")
def kernels() -> SimpleNamespace:
    """The helpers of this file."""
    return SimpleNamespace(
        LOCAL=LOCAL,
        SCALE_ADD=SCALE_ADD,
        shader=shader,
        scale_add=scale_add,
        upload=upload,
        download=download,
        run_scale_add=run_scale_add,
        python=python,
    )
