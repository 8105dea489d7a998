"""What is generated and by whom: skeletons from templates, other devices left to Inductor's own backends."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled, copies, on_device, same
from torch._inductor.utils import run_and_get_code

import vkinductor
from vkinductor.codegen import heuristics, source


def test_every_kernel_is_rendered_from_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pointwise, persistent and looped reductions, products: each text comes out of render(), none is concatenated."""
    rendered: list[str] = []
    original = source.render

    def render(template: str, **context: object) -> str:
        text = original(template, **context)
        rendered.append(text)
        return text

    monkeypatch.setattr(source, "render", render)

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sin() + 1, x.softmax(-1), (x @ w).relu(), x.index_add(0, torch.arange(9, device=x.device), x)

    _, (code,) = run_and_get_code(compiled(f), *on_device([torch.randn(9, 16), torch.randn(16, 8)]))
    kernels = re.findall(r"glsl='''\n(.*?)'''", code, re.DOTALL)
    assert len(kernels) == 3
    for kernel in kernels:
        assert kernel in rendered


def test_generated_glsl_holds_no_line_of_python_or_jinja() -> None:
    with heuristics.override(lanes=8, rows=2, elements=4):
        _, (code,) = run_and_get_code(compiled(lambda x: x.softmax(-1)), torch.randn(4, 32, device="vulkan"))
    (kernel,) = re.findall(r"glsl='''\n(.*?)'''", code, re.DOTALL)
    assert kernel.lstrip().startswith("#version 460")
    assert not re.search(r"\{[%{#]|None|True|False", kernel)


def test_an_unused_library_function_is_not_in_the_text() -> None:
    _, (code,) = run_and_get_code(compiled(lambda x: x + 1), torch.randn(4, device="vulkan"))
    assert "vk_exp" not in code
    _, (code,) = run_and_get_code(compiled(lambda x: x.exp()), torch.randn(4, device="vulkan"))
    assert "float vk_exp(" in code
    assert "vk_sin" not in code


def test_equal_kernels_are_defined_once() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.softmax(-1) @ z, y.softmax(-1) @ z

    x = torch.randn(9, 9)
    _, (code,) = run_and_get_code(compiled(f), *on_device([x, x + 1, x * 2]))
    assert code.count(".run(") == 4
    assert code.count("vulkan_kernel(") == 2


def test_plain_torch_compile_on_the_device() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
    x = torch.randn(5, 8)
    expected = model(x)
    moved = model.to("vulkan")
    g = torch.compile(moved)
    result, (code,) = run_and_get_code(g, x.to("vulkan"))
    assert "#version 460" in code
    same(result.detach(), expected.detach(), rtol=1e-4, atol=1e-5)
    vkinductor.reset_stats()
    g(x.to("vulkan"))
    assert not vkinductor.stats()["fallbacks"]


def test_the_cpu_keeps_its_own_backend() -> None:
    """Before and after a Vulkan graph was compiled in the process, CPU graphs become C++."""
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        pytest.skip("Inductor's CPU backend needs a C++ compiler, and this machine has none")

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.softmax(torch.addmm(x, x, w).sin(), -1)

    x = torch.randn(6, 6)
    compiled(f)(*on_device([x, x]))
    torch._dynamo.reset()
    result, (code,) = run_and_get_code(torch.compile(f), x, x)
    assert "#version 460" not in code
    assert "cpp" in code
    same(result, f(x, x))


def test_other_devices_keep_what_inductor_has_for_them() -> None:
    """In a process where ours is registered first. torch 2.11 loads its own only while the table is empty, and CUDA's
    programs then took their streams from the CPU."""
    code = """
import vkinductor.codegen
vkinductor.codegen.register()
from torch._dynamo.device_interface import get_interface_for_device
from torch._inductor.codegen.common import get_device_op_overrides, get_scheduling_for_device, init_backend_registration
init_backend_registration()
for device in ("cpu", "cuda", "vulkan"):
    parts = get_device_op_overrides(device), get_interface_for_device(device)(), get_scheduling_for_device(device)
    print(*(getattr(part, "__name__", type(part).__name__) for part in parts))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    cpu, cuda, ours = (line.split() for line in result.stdout.splitlines())
    assert cpu[:2] == ["CpuDeviceOpOverrides", "CpuInterface"]
    assert cuda[:2] == ["CUDADeviceOpOverrides", "CudaInterface"]
    assert ours == ["VulkanDeviceOps", "VulkanInterface", "VulkanScheduling"]
    assert "VulkanScheduling" not in cpu + cuda


def test_templates_are_package_data() -> None:
    folder = Path(vkinductor.__file__).parent / "templates"
    names = {path.name for path in folder.glob("*.glsl.jinja")}
    needed = {"pointwise", "reduction", "fold", "header", "matmul_direct", "matmul_tiled"}
    assert {f"{name}.glsl.jinja" for name in needed} <= names


def test_a_kernel_with_many_arguments_uses_the_argument_block() -> None:
    """More pointers than push constants hold (128 bytes are guaranteed)."""

    def f(*xs: torch.Tensor) -> list[torch.Tensor]:
        total = sum(xs[1:], xs[0])
        return [x * total for x in xs]

    args = [torch.randn(5) for _ in range(40)]
    moved = on_device(args)
    result, (code,) = run_and_get_code(compiled(f), *moved)
    assert "VkArgsBlock" in code
    same(result, f(*copies(args)), rtol=1e-5, atol=1e-5)


def test_the_cse_keeps_dtypes_apart() -> None:
    """The same expression text in two register types are two values."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.to(torch.int32) * 2, x.to(torch.int64) * 2, x.to(torch.float32) * 2

    x = torch.tensor([1 << 30, -(1 << 31), 5])
    same(compiled(f)(x.to("vulkan")), f(x))
