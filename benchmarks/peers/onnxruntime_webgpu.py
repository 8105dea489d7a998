"""ONNX Runtime's WebGPU provider: Dawn on Vulkan."""

from __future__ import annotations

from typing import Any

import onnxruntime

from . import onnx_graph
from .problems import Arrays

PROVIDER = "WebGpuExecutionProvider"


def about() -> str:
    """Package. Raises ImportError where the installed build has another provider."""
    if PROVIDER not in onnxruntime.get_available_providers():
        raise ImportError(f"this onnxruntime has no {PROVIDER}")
    return f"onnxruntime-webgpu {onnxruntime.__version__}"


def prepare(problem: str, arrays: Arrays) -> Any:
    """Inputs and results are copied: its Python package has no tensors on such a device."""
    model, inputs = onnx_graph.model(problem, arrays)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=[PROVIDER])
    return lambda: session.run(None, inputs)[0], lambda result: result
