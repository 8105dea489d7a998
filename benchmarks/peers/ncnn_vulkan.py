"""ncnn with its Vulkan layers in float32."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ncnn
import numpy as np

from .problems import EPSILON, HEADS, INNER, LAYERS, MATMUL, WIDTH, Arrays


def about() -> str:
    """Package and the device."""
    ncnn.create_gpu_instance()
    return f"ncnn {ncnn.__version__}, {ncnn.get_gpu_info(0).device_name()}"


class _Net:
    """A net's layers and weights, as ncnn's files have them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.blobs = 0
        self.weights = b""

    def layer(self, kind: str, inputs: list[str], outputs: list[str], parameters: str = "") -> None:
        self.blobs += len(outputs)
        names = " ".join([*inputs, *outputs])
        self.lines.append(f"{kind} l{len(self.lines)} {len(inputs)} {len(outputs)} {names} {parameters}")

    def matrix(self, values: Any) -> None:
        """Weights that may be stored in other formats have a flag before them; 0 is float32."""
        self.weights += np.int32(0).tobytes() + np.ascontiguousarray(values, np.float32).tobytes()

    def vector(self, values: Any) -> None:
        self.weights += np.ascontiguousarray(values, np.float32).tobytes()

    def text(self) -> str:
        return "\n".join(["7767517", f"{len(self.lines)} {self.blobs}", *self.lines, ""])


def _encoder(net: _Net, arrays: Arrays) -> None:
    def norm(x: str, result: str, name: str) -> None:
        net.layer("LayerNorm", [x], [result], f"0={WIDTH} 1={EPSILON:e} 2=1")
        net.vector(arrays[f"{name}.weight"])
        net.vector(arrays[f"{name}.bias"])

    def linear(x: str, result: str, name: str, size: int) -> None:
        weight = arrays[f"{name}.weight"]
        net.layer("InnerProduct", [x], [result], f"0={size} 1=1 2={weight.size}")
        net.matrix(weight)
        net.vector(arrays[f"{name}.bias"])

    net.layer("Input", [], ["x"])
    x = "x"
    for layer in range(LAYERS):

        def name(part: str, layer: int = layer) -> str:
            return f"{part}{layer}"

        net.layer("Split", [x], [name("kept"), name("read")])
        norm(name("read"), name("first"), f"{layer}.norm1")
        net.layer("MultiHeadAttention", [name("first")], [name("attention")], f"0={WIDTH} 1={HEADS} 2={WIDTH * WIDTH}")
        weight, bias = arrays[f"{layer}.qkv.weight"], arrays[f"{layer}.qkv.bias"]
        for part in range(3):
            rows = slice(part * WIDTH, (part + 1) * WIDTH)
            net.matrix(weight[rows])
            net.vector(bias[rows])
        net.matrix(arrays[f"{layer}.out.weight"])
        net.vector(arrays[f"{layer}.out.bias"])
        net.layer("BinaryOp", [name("kept"), name("attention")], [name("middle")], "0=0")
        net.layer("Split", [name("middle")], [name("kept2"), name("read2")])
        norm(name("read2"), name("second"), f"{layer}.norm2")
        linear(name("second"), name("up"), f"{layer}.up", INNER)
        net.layer("GELU", [name("up")], [name("inner")], "0=0")
        linear(name("inner"), name("down"), f"{layer}.down", WIDTH)
        net.layer("BinaryOp", [name("kept2"), name("down")], [x := name("end")], "0=0")


def prepare(problem: str, arrays: Arrays) -> Any:
    """Inputs and results are copied, as its Python package does."""
    net, inputs = _Net(), {"x": arrays["x"]}
    if problem == MATMUL:
        inputs["y"] = arrays["y"]
        net.layer("Input", [], ["x"])
        net.layer("Input", [], ["y"])
        net.layer("Gemm", ["x", "y"], ["end"])
        last = "end"
    else:
        _encoder(net, arrays)
        last = f"end{LAYERS - 1}"
    made = ncnn.Net()
    made.opt.use_vulkan_compute = True
    for reduced in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_packed", "bf16_storage"):
        if hasattr(made.opt, f"use_{reduced}"):
            setattr(made.opt, f"use_{reduced}", False)
    with tempfile.TemporaryDirectory() as folder:
        parameters, weights = Path(folder, "net.param"), Path(folder, "net.bin")
        parameters.write_text(net.text())
        weights.write_bytes(net.weights)
        if made.load_param(str(parameters)) or made.load_model(str(weights)):
            raise RuntimeError("ncnn did not load the net")
    # A Mat made of an array does not keep the array's memory.
    mats = {name: ncnn.Mat(value).clone() for name, value in inputs.items()}

    def call() -> Any:
        extractor = made.create_extractor()
        for name, mat in mats.items():
            extractor.input(name, mat)
        status, result = extractor.extract(last)
        if status:
            raise RuntimeError(f"ncnn: extract gave {status}")
        # The result's memory goes with the extractor.
        return np.array(result)

    return call, lambda result: result
