"""Registration: idempotent, cheap, opens nothing, and clear about a slot that somebody else has taken."""

from __future__ import annotations

import subprocess
import sys

import torch

from vkinductor.device import registration


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_idempotent() -> None:
    module = torch.vulkan
    registration.register()
    assert torch.vulkan is module
    assert torch.device("vulkan").type == "vulkan"


def test_registers_names_only() -> None:
    done = run(
        "import sys, time, torch\n"
        "before = set(sys.modules)\n"
        "start = time.perf_counter()\n"
        "from vkinductor.device import registration\n"
        "registration.register()\n"
        "took = time.perf_counter() - start\n"
        "from vkinductor.runtime import context\n"
        "assert not context.is_open()\n"
        "new = set(sys.modules) - before\n"
        "bad = [m for m in new if m.startswith(('torch._inductor', 'torch._dynamo', 'vulkan', 'jinja2'))]\n"
        "print(bad == [] or bad, took < 1)\n"
    )
    assert done.stdout.split() == ["True", "True"], done.stdout + done.stderr


def test_slot_taken_by_another_package() -> None:
    done = run(
        "import types, torch\n"
        "torch.utils.rename_privateuse1_backend('vulkan')\n"
        "torch._register_device_module('vulkan', types.ModuleType('torchother'))\n"
        "try:\n"
        "    from vkinductor.device import registration\n"
        "    registration.register()\n"
        "except RuntimeError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    assert done.stdout.startswith("UnsupportedError"), done.stdout + done.stderr
    assert "torchother" in done.stdout
    assert "one slot" in done.stdout


def test_slot_taken_under_another_name() -> None:
    done = run(
        "import torch\n"
        "torch.utils.rename_privateuse1_backend('npu')\n"
        "try:\n"
        "    from vkinductor.device import registration\n"
        "    registration.register()\n"
        "except RuntimeError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    assert done.stdout.startswith("UnsupportedError"), done.stdout + done.stderr
    assert "'npu'" in done.stdout


def test_methods() -> None:
    tensor = torch.ones(2).vulkan()
    assert tensor.is_vulkan
    assert not torch.ones(2).is_vulkan
    assert torch.nn.Linear(2, 2).vulkan().weight.is_vulkan
    assert tensor.untyped_storage().is_vulkan
    assert tensor.to("vulkan") is tensor
    assert str(tensor.device) == "vulkan:0"
