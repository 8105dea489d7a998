"""Bad input: a typed error that says what to do, through torch.compile, and the next call works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from vkinductor.backend import vulkan
from vkinductor.runtime.errors import ShaderCompileError, UnsupportedError, VulkanError, VulkanOutOfMemoryError


def works() -> None:
    """The next call."""
    x = torch.arange(3.0)
    assert torch.equal(torch.compile(lambda x: x * 3, backend="vulkan", fullgraph=True)(x), x * 3)


def test_sparse_and_quantized_arguments() -> None:
    """Dynamo leaves these to eager on the CPU; a graph that is handed to the backend with them is refused."""
    sparse = torch.eye(3).to_sparse()
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    result = torch.compile(lambda x, s: x + s.to_dense(), backend="vulkan")(torch.ones(3, 3), sparse)
    assert torch.equal(result, torch.eye(3) + 1)
    module = torch.fx.symbolic_trace(lambda x: x * 2)
    with pytest.raises(UnsupportedError, match=r"to_dense\(\)"):
        vulkan(module, [sparse])
    with pytest.raises(UnsupportedError, match=r"dequantize\(\)"):
        vulkan(module, [quantized])
    works()


def test_meta_tensors() -> None:
    with pytest.raises(UnsupportedError, match=r"meta.*move it to 'cpu' or 'vulkan'"):
        torch.compile(lambda x: x + 1, backend="vulkan")(torch.ones(3, device="meta"))
    works()


def test_two_devices() -> None:
    x, y = torch.ones(3), torch.ones(3, device="vulkan")
    with pytest.raises(RuntimeError, match=r"vulkan.*cpu|cpu.*vulkan"):
        torch.compile(lambda x, y: x + y, backend="vulkan")(x, y)
    works()
    both = torch.compile(lambda x, y: y * x.sum().item(), backend="vulkan")(x, y)
    assert both.cpu().tolist() == [3.0] * 3


@pytest.mark.parametrize("device", ["cpu", "vulkan"])
def test_out_of_memory_in_a_compiled_function(device: str) -> None:
    x = torch.ones(4, 1, device=device)
    compiled = torch.compile(lambda x: (x.expand(4, 1 << 36) * 2)[:, :1].clone().contiguous(), backend="vulkan")
    assert compiled(x).cpu().flatten().tolist() == [2.0] * 4  # fused: nothing of that size is needed
    with pytest.raises(VulkanOutOfMemoryError, match=str(1 << 40)):
        torch.compile(lambda x: x.expand(4, 1 << 36) * 2, backend="vulkan")(x)
    works()


def test_out_of_memory_outside() -> None:
    with pytest.raises(VulkanOutOfMemoryError, match="bytes"):
        torch.empty(1 << 40, dtype=torch.uint8, device="vulkan")
    works()


def test_errors_while_lowering_keep_their_type(monkeypatch: pytest.MonkeyPatch) -> None:
    from vkinductor.codegen.kernel import VulkanKernel

    def failing(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError("this device lacks a thing; buy another")

    with monkeypatch.context() as patch:
        patch.setattr(VulkanKernel, "store", failing)
        with pytest.raises(UnsupportedError, match="buy another") as caught:
            torch.compile(lambda x: x * 1.25 + 7, backend="vulkan")(torch.ones(3))
    assert type(caught.value).__name__ == "UnsupportedError"
    works()


def test_errors_of_the_compiler_keep_their_type(monkeypatch: pytest.MonkeyPatch) -> None:
    from vkinductor.runtime import context

    def failing(*args: Any, **kwargs: Any) -> Any:
        raise ShaderCompileError("line 1: no")

    with monkeypatch.context() as patch:
        patch.setattr(context.get().pipelines, "get", failing)
        with pytest.raises(ShaderCompileError, match="line 1"):
            torch.compile(lambda x: x * 1.5 + 9, backend="vulkan")(torch.ones(3))
    works()


def test_other_errors_are_dynamos(monkeypatch: pytest.MonkeyPatch) -> None:
    from vkinductor.offload import graph

    def failing(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(graph, "move", failing)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="a bug"):
        torch.compile(lambda x: x * 1.75, backend="vulkan")(torch.ones(3))


def test_a_subclass_that_cannot_be_taken_apart() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    with pytest.raises(UnsupportedError, match="TwoTensor"):
        torch.compile(lambda x: x * 2, backend="vulkan")(TwoTensor(torch.ones(3), torch.ones(3)))
    works()


SCRIPT = """
import torch
{setup}
def attempt(run):
    try:
        run()
        print("no error")
    except Exception as error:
        print(type(error).__name__, "|", str(error).replace(chr(10), " "))
attempt(lambda: torch.compile(lambda x: x + 1, backend="vulkan")(torch.ones(3)))
attempt(lambda: torch.compile(lambda x: x + 1, backend="vulkan")(torch.ones(3)))
import vkinductor
print(vkinductor.is_available(), vkinductor.device_count())
print(torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(3)).tolist())
"""


def outcome(setup: str = "", **environment: str) -> list[str]:
    root = Path(__file__).parents[2]
    env = {**os.environ, **environment}
    env["PYTHONPATH"] = os.pathsep.join([str(root), env.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(setup=setup)], env=env, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_no_driver(tmp_path: Path) -> None:
    junk = tmp_path / "junk.json"
    junk.write_text('{"file_format_version": "1.0.0", "ICD": {"library_path": "/none.so", "api_version": "1.3"}}')
    first, second, available, other = outcome(VK_DRIVER_FILES=str(junk), VK_ICD_FILENAMES=str(junk))
    assert first.startswith("NoDeviceError |")
    assert second == first
    assert "VK_DRIVER_FILES" in first
    assert available == "False 0"
    assert other == "[2.0, 2.0, 2.0]"


def test_no_loader() -> None:
    hide = "\n".join([
        "import ctypes, sys, importlib.abc",
        "class Hidden(importlib.abc.MetaPathFinder):",
        "    def find_spec(self, name, path=None, target=None):",
        "        if name == 'vulkan':",
        "            raise OSError('libvulkan.so.1: cannot open shared object file')",
        "sys.meta_path.insert(0, Hidden())",
    ])  # fmt: skip
    first, second, available, other = outcome(hide)
    assert first.startswith("NoDeviceError |")
    assert "loader" in first
    assert second == first
    assert available == "False 0"
    assert other == "[2.0, 2.0, 2.0]"


def test_a_selector_that_matches_nothing() -> None:
    first, *_ = outcome(VKINDUCTOR_DEVICE="no such device")
    assert first.startswith("NoDeviceError |")
    assert "no such device" in first


def test_every_error_is_a_vulkan_error() -> None:
    import vkinductor

    names = ("NoDeviceError", "ShaderCompileError", "UnsupportedError", "VulkanOutOfMemoryError", "DeviceLostError")
    for name in names:
        assert issubclass(getattr(vkinductor, name), VulkanError)
