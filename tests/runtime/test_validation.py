"""The validation layer is really on when asked for: it sees a wrong call and a missing barrier."""

from __future__ import annotations

import re

import pytest

from vkinductor.runtime import loader

PRELUDE = """
from vkinductor.runtime import context, loader
device = context.get()
a, b = device.memory.allocate(4096), device.memory.allocate(4096)
source, offset = device.memory.find(a)
target, at = device.memory.find(b)
stream, vk = device.stream, device.vk
"""
REPORT = """
stream.synchronize()
print("messages:", " ".join(loader.validation_messages()))
"""


@pytest.fixture(scope="module")
def layer():
    if loader.VALIDATION_LAYER not in loader.instance().layers():
        pytest.skip("the validation layer is not installed")


def messages(kernels, code: str) -> str:
    result = kernels.python(PRELUDE + code + REPORT, VKINDUCTOR_VALIDATION="1", VKINDUCTOR_LIMITS="host_mapping=0")
    assert result.returncode == 0, result.stderr
    return result.stdout.partition("messages:")[2].strip()


def test_right_use_is_silent(layer, kernels):
    code = """
for _ in range(5):
    stream.fill(a, 4096, 1)
    stream.copy(b, a, 4096)
    stream.copy(a, b, 100)
"""
    assert messages(kernels, code) == ""


def test_a_wrong_call_is_seen(layer, kernels):
    text = messages(kernels, "vk.vkCmdFillBuffer(stream.command(), source, offset + 1, 4, 0)")
    assert "VUID-vkCmdFillBuffer" in text


def test_a_missing_barrier_is_seen(layer, kernels):
    code = """
command = stream.command()
vk.vkCmdFillBuffer(command, source, offset, 4096, 0)
stream._record_copy(command, source, offset, target, at, 4096)
"""
    assert re.search("READ.AFTER.WRITE", messages(kernels, code))  # layers differ in the words round it


def test_a_missing_layer_is_a_typed_error(kernels):
    code = """
from vkinductor.runtime import context, loader
loader.VALIDATION_LAYER = "VK_LAYER_NOT_installed"
try:
    context.get()
except Exception as error:
    print(type(error).__name__, error)
"""
    result = kernels.python(code, VKINDUCTOR_VALIDATION="1")
    assert result.stdout.startswith("UnsupportedError VKINDUCTOR_VALIDATION=1 needs")
