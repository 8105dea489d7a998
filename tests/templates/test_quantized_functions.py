"""Weights in block formats, bit for bit as the `gguf` package has them: every unit of every kind of block."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from vkinductor.runtime.abi import EXTENSIONS, ArgumentLayout
from vkinductor.runtime.grid import LINEAR_GROUP_ID, fold
from vkinductor.runtime.pipeline import KernelSource
from vkinductor.runtime.spirv import float_controls
from vkinductor.templates import library, library_functions

gguf = pytest.importorskip("gguf")

NAMES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")
# Byte offsets of the halves in a block that scale it.
SCALES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
# The largest, the least normal, the least, the largest below one, zeros, ones, infinities, NaN.
SPECIAL = np.array([0x7BFF, 0x0400, 0x0001, 0x8001, 0x3BFF, 0, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00], "<u2")
LOCAL = 64


def shader(name: str, layout: ArgumentLayout, controls: str) -> str:
    """Invocation i writes unit i."""
    text = library({f"vk_dequantize_{name.lower()}"} & library_functions())
    types = {"uint16_t": 2, "uint": 4, "uvec2": 8, "uvec4": 16, "float": 4}
    used = [t for t in types if re.search(rf"\bBuffer_{t}\b", text) or t == "float"]
    lines = ["#version 460"]
    extensions = ("GL_EXT_shader_explicit_arithmetic_types", "GL_EXT_shader_16bit_storage")
    lines += [f"#extension {one} : require" for one in dict.fromkeys((*EXTENSIONS, *extensions))]
    lines += ["#extension GL_EXT_control_flow_attributes : require", controls, f"layout(local_size_x = {LOCAL}) in;"]
    lines += [
        f"layout(buffer_reference, scalar, buffer_reference_align = {types[t]}) buffer Buffer_{t} {{ {t} d[]; }};"
        for t in used
    ]
    lines += [layout.glsl(True), text, "void main() {", "    float values[32];"]
    lines += [f"    uint i = {LINEAR_GROUP_ID} * {LOCAL}u + gl_LocalInvocationID.x;", "    if (i >= ARG.n) return;"]
    lines += [f"    vk_dequantize_{name.lower()}(ARG.blocks, int(i), values);"]
    lines += ["    for (int v = 0; v < 32; ++v) Buffer_float(ARG.result).d[i * 32u + v] = values[v];", "}", ""]
    return "\n".join(lines)


@pytest.fixture
def dequantize(device) -> Callable[[str, np.ndarray], np.ndarray]:
    """A function (name, blocks as uint8) -> their weights as float32."""
    features = device.info.features

    def run(name: str, packed: np.ndarray) -> np.ndarray:
        elements, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
        result = np.empty(packed.size // nbytes * elements, np.float32)
        layout = ArgumentLayout((("blocks", "ptr"), ("result", "ptr"), ("n", "u32")))
        controls = float_controls(
            signed_zero_inf_nan_preserve=32 if features.signed_zero_inf_nan_preserve_f32 else None,
            denorm_preserve=32 if features.denorm_preserve_f32 else None,
        )
        pipeline = device.pipelines.get(KernelSource(name, shader(name, layout, controls), layout))
        ranges = [(device.memory.allocate(array.nbytes), array.nbytes) for array in (packed, result)]
        device.stream.upload(ranges[0][0], packed.ctypes.data, packed.nbytes)
        n = result.size // 32
        args = pipeline.pack(*(address for address, _ in ranges), n)
        device.stream.dispatch(pipeline, fold(-(-n // LOCAL), device.info.limits), args, ranges[:1], ranges[1:])
        device.stream.download(result.ctypes.data, *ranges[1])
        device.synchronize()
        for address, _ in ranges:
            device.memory.free(address)
        return result

    return run


def blocks(name: str, rng: np.random.Generator) -> np.ndarray:
    """Random bytes, each special value as each scale, and blocks of one byte alone."""
    nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1]
    data = rng.integers(0, 256, (4 * len(SPECIAL) + 4, nbytes), np.uint8)
    for at, place in enumerate(SCALES[name]):
        special = np.tile(np.roll(SPECIAL, 5 * at), 2)
        data[: len(special), place : place + 2] = special.view(np.uint8).reshape(-1, 2)
    data[-4:] = np.array([0, 255, 0x80, 0x0F], np.uint8)[:, None]
    return data


@pytest.mark.parametrize("name", NAMES)
def test_every_unit_of_blocks(dequantize, rng, name):
    data = blocks(name, rng)
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name]).reshape(-1)
    got = dequantize(name, data)
    nan = np.isnan(want)
    assert (np.isnan(got) == nan).all()
    assert (got.view(np.uint32) == want.view(np.uint32))[~nan].all()


def test_all_formats_are_here():
    from vkinductor.codegen.quantized.formats import PACKINGS

    assert {packing.format.name for packing in PACKINGS.values()} == set(NAMES)
    assert {packing.dequantize for packing in PACKINGS.values()} <= library_functions()
