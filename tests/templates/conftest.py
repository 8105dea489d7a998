"""`evaluate`: one GLSL expression over arrays, on the device, with the library functions that it names."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from samples import Subnormals

from vkinductor.runtime.abi import EXTENSIONS, ArgumentLayout
from vkinductor.runtime.grid import LINEAR_GROUP_ID, fold
from vkinductor.runtime.pipeline import KernelSource
from vkinductor.runtime.spirv import float_controls
from vkinductor.templates import library, library_functions

LOCAL = 64
NAMES = "abcd"
STORAGE = {
    "float16": "float16_t",
    "float32": "float",
    "float64": "double",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int16": "int16_t",
    "uint16": "uint16_t",
    "int32": "int",
    "uint32": "uint",
    "int64": "int64_t",
    "uint64": "uint64_t",
}
MORE_EXTENSIONS = (
    "GL_EXT_shader_explicit_arithmetic_types",
    "GL_EXT_shader_16bit_storage",
    "GL_EXT_shader_8bit_storage",
)


PROBED: list[bool] = []


def shader(expression: str, layout: ArgumentLayout, inputs: list[str], output: str, controls: str) -> str:
    """result[i] = expression of a[i], b[i], ..."""
    names = set(re.findall(r"\bvk_\w+", expression)) & library_functions()
    types = sorted({*inputs, output})
    lines = ["#version 460"]
    lines += [f"#extension {name} : require" for name in dict.fromkeys((*EXTENSIONS, *MORE_EXTENSIONS))]
    lines += [controls, f"layout(local_size_x = {LOCAL}) in;"]
    lines += [
        f"layout(buffer_reference, scalar, buffer_reference_align = 1) buffer Buffer_{t} {{ {t} d[]; }};" for t in types
    ]
    lines += [layout.glsl(True), library(names), "void main() {"]
    lines += [f"    uint i = {LINEAR_GROUP_ID} * {LOCAL}u + gl_LocalInvocationID.x;", "    if (i >= ARG.n) return;"]
    lines += [f"    {t} {name} = Buffer_{t}(ARG.{name}).d[i];" for name, t in zip(NAMES, inputs, strict=False)]
    lines += [f"    Buffer_{output}(ARG.result).d[i] = {output}({expression});", "}", ""]
    return "\n".join(lines)


def needs(arrays: list[np.ndarray]) -> list[str]:
    """Features of a device that arrays of these dtypes ask for."""
    wanted = {"float64": ["float64"], "int8": ["int8"], "uint8": ["int8"], "int16": ["int16"], "uint16": ["int16"]}
    return sorted({feature for array in arrays for feature in wanted.get(array.dtype.name, [])})


@pytest.fixture
def evaluate(device) -> Callable[..., np.ndarray]:
    """A function (expression, *arrays, out=dtype) -> array. The arrays are a, b, c, d in the expression."""
    features = device.info.features

    def run(expression: str, *arrays: np.ndarray, out: type = np.float32) -> np.ndarray:
        result = np.empty(len(arrays[0]), out)
        if lacking := [feature for feature in needs([*arrays, result]) if not getattr(features, feature)]:
            pytest.skip(f"the device has no {', '.join(lacking)}")
        pointers = [(name, "ptr") for name, _ in zip(NAMES, arrays, strict=False)]
        layout = ArgumentLayout((*pointers, ("result", "ptr"), ("n", "u32")))
        controls = float_controls(
            signed_zero_inf_nan_preserve=32 if features.signed_zero_inf_nan_preserve_f32 else None,
            denorm_preserve=32 if features.denorm_preserve_f32 else None,
        )
        inputs = [STORAGE[array.dtype.name] for array in arrays]
        glsl = shader(expression, layout, inputs, STORAGE[result.dtype.name], controls)
        pipeline = device.pipelines.get(KernelSource(expression, glsl, layout))
        ranges = []
        for array in (*arrays, result):
            array = np.ascontiguousarray(array)
            address = device.memory.allocate(array.nbytes)
            if array is not result:
                device.stream.upload(address, array.ctypes.data, array.nbytes)
            ranges.append((address, array.nbytes))
        n = len(result)
        args = pipeline.pack(*(address for address, _ in ranges), n)
        device.stream.dispatch(pipeline, fold(-(-n // LOCAL), device.info.limits), args, ranges[:-1], ranges[-1:])
        device.stream.download(result.ctypes.data, *ranges[-1])
        device.synchronize()
        for address, _ in ranges:
            device.memory.free(address)
        return result

    return run


@pytest.fixture(autouse=True)
def subnormals(evaluate) -> None:
    """Ask the device once a test session; it may preserve subnormals without saying so, or flush in comparisons."""
    if not PROBED:
        tiny = np.array([1e-40, 2e-39], np.float32)
        kept = evaluate("a * 0.5", tiny) == tiny * np.float32(0.5)
        PROBED.append(bool(kept.all() and (evaluate("a > 0.0 ? 1.0 : 0.0", tiny) == 1).all()))
    Subnormals.kept = PROBED[0]


@pytest.fixture
def rng() -> np.random.Generator:
    """The same numbers in every run."""
    return np.random.default_rng(20240229)
