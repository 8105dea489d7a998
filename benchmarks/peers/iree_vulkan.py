"""IREE: a compiler to Vulkan's SPIR-V and its runtime."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import iree.compiler
import iree.runtime
import numpy as np

from . import onnx_graph
from .problems import Arrays


def about() -> str:
    """Packages and the device."""
    devices = iree.runtime.get_driver("vulkan").query_available_devices()
    return f"iree-base-compiler {version('iree-base-compiler')}, {devices[0]['name']}"


def imported(model: bytes) -> str:
    """MLIR of an ONNX model, by IREE's own importer."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "model.onnx"), Path(folder, "model.mlir")
        source.write_bytes(model)
        command = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(source), "-o", str(target)]
        subprocess.run(command, check=True)
        return target.read_text()


def fetch(device: Any, result: Any) -> Any:
    """Through a staging buffer of our own: ``to_host`` imports NumPy's memory, whose address need not be a page's."""
    runtime = iree.runtime
    source = result._buffer_view.get_buffer()
    staging = device.allocator.allocate_buffer(
        memory_type=int(runtime.MemoryType.HOST_LOCAL | runtime.MemoryType.DEVICE_VISIBLE),
        allowed_usage=int(runtime.BufferUsage.TRANSFER_TARGET | runtime.BufferUsage.MAPPING_SCOPED),
        allocation_size=source.byte_length(),
    )
    semaphore = device.create_semaphore(0)
    begin, end = (runtime.HalFence.create_at(semaphore, i) for i in range(2))
    device.queue_copy(source, staging, wait_semaphores=begin, signal_semaphores=end)
    end.wait()
    return staging.map().asarray(result._buffer_view.shape, np.dtype(np.float32)).copy()


def prepare(problem: str, arrays: Arrays) -> Any:
    """Compiled ahead of time; operands stay on the device. A call returns when it is done."""
    model, inputs = onnx_graph.model(problem, arrays)
    compiled = iree.compiler.compile_str(imported(model), target_backends=["vulkan-spirv"], input_type="onnx")
    device = iree.runtime.get_driver("vulkan").create_default_device()
    context = iree.runtime.SystemContext(config=iree.runtime.Config(device=device))
    context.add_vm_module(iree.runtime.VmModule.copy_buffer(context.instance, compiled))
    function = context.modules.module[onnx_graph.NAME]
    operands = [iree.runtime.asdevicearray(device, value) for value in inputs.values()]
    return lambda: function(*operands), lambda result: fetch(device, result)
