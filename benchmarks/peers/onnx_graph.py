"""The problems as ONNX models, for runtimes that take those."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .problems import EPSILON, HEADS, LAYERS, MATMUL, TOKENS, WIDTH, Arrays

OPSET = 20
# Of the graph.
NAME = "problem"


class _Graph:
    """Nodes in order, each with one result."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"t{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names


def _encoder(graph: _Graph, arrays: Arrays) -> str:
    head = WIDTH // HEADS
    split, joined = graph.constant(np.array([TOKENS, HEADS, head])), graph.constant(np.array([TOKENS, WIDTH]))
    scale = graph.constant(np.float32(1 / math.sqrt(head)))

    def linear(x: str, name: str) -> str:
        weight, bias = (arrays[f"{name}.{part}"] for part in ("weight", "bias"))
        return str(graph.node("Add", graph.node("MatMul", x, graph.constant(weight.T)), graph.constant(bias)))

    def norm(x: str, name: str) -> str:
        weight, bias = (graph.constant(arrays[f"{name}.{part}"]) for part in ("weight", "bias"))
        return str(graph.node("LayerNormalization", x, weight, bias, axis=-1, epsilon=EPSILON))

    def heads(x: str, order: list[int]) -> str:
        return str(graph.node("Transpose", graph.node("Reshape", x, split), perm=order))

    x = "x"
    for layer in range(LAYERS):
        qkv = linear(norm(x, f"{layer}.norm1"), f"{layer}.qkv")
        q, k, v = graph.node("Split", qkv, outputs=3, axis=-1, num_outputs=3)
        scores = graph.node("MatMul", graph.node("Mul", heads(q, [1, 0, 2]), scale), heads(k, [1, 2, 0]))
        sums = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), heads(v, [1, 0, 2]))
        attention = graph.node("Reshape", graph.node("Transpose", sums, perm=[1, 0, 2]), joined)
        x = graph.node("Add", x, linear(attention, f"{layer}.out"))
        inner = graph.node("Gelu", linear(norm(x, f"{layer}.norm2"), f"{layer}.up"))
        x = graph.node("Add", x, linear(inner, f"{layer}.down"))
    return x


def model(problem: str, arrays: Arrays) -> tuple[bytes, dict[str, Any]]:
    """The serialized model, whose one result is called "result", and its inputs."""
    graph = _Graph()
    inputs = {name: arrays[name] for name in (("x", "y") if problem == MATMUL else ("x",))}
    last = graph.node("MatMul", "x", "y") if problem == MATMUL else _encoder(graph, arrays)
    graph.nodes[-1].output[0] = "result"
    assert last
    shape = arrays["x"].shape
    made = helper.make_graph(
        graph.nodes,
        NAME,
        [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, v.shape) for n, v in inputs.items()],
        [helper.make_tensor_value_info("result", onnx.TensorProto.FLOAT, shape)],
        graph.constants,
    )
    whole = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(whole)
    return whole.SerializeToString(), inputs
