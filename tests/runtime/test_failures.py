"""What the user sees when something is missing or breaks, each in a process of its own."""

from __future__ import annotations

import os
import sys

import pytest

from vkinductor.runtime import env, errors
from vkinductor.runtime.errors import CacheError, DeviceLostError, VulkanError, VulkanOutOfMemoryError

REPORT = """
from vkinductor.runtime import context, physical
for call in (context.get, physical.list_devices):
    try:
        call()
        print("no error")
    except Exception as error:
        print(type(error).__name__, "|", str(error).replace(chr(10), " "))
"""


def lines(kernels, code: str, **environment: str) -> list[str]:
    """Lines that the code printed; it must not crash."""
    result = kernels.python(code, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_junk_driver_files_are_named_in_the_error(kernels, tmp_path):
    junk = tmp_path / "junk.json"
    junk.write_text('{"file_format_version": "1.0.0", "ICD": {"library_path": "/none.so", "api_version": "1.3"}}')
    for text in lines(kernels, REPORT, VK_DRIVER_FILES=str(junk), VK_ICD_FILENAMES=str(junk))[:1]:
        assert text.startswith("NoDeviceError")
        assert "VK_DRIVER_FILES" in text
        assert str(junk) in text


def test_a_missing_driver_file(kernels, tmp_path):
    path = str(tmp_path / "nothing.json")
    assert lines(kernels, REPORT, VK_DRIVER_FILES=path, VK_ICD_FILENAMES=path)[0].startswith("NoDeviceError")


def test_a_driver_that_appears_later_is_found(kernels, tmp_path):
    code = """
import os
from vkinductor.runtime import context
saved = {name: os.environ.pop(name, None) for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")}
os.environ["VK_DRIVER_FILES"] = os.environ["VK_ICD_FILENAMES"] = "/nothing.json"
try:
    context.get()
except Exception as error:
    print(type(error).__name__)
for name, value in saved.items():
    os.environ.pop(name)
    if value is not None:
        os.environ[name] = value
print(context.get().info.name != "")
"""
    assert lines(kernels, code) == ["NoDeviceError", "True"]


@pytest.mark.skipif(sys.platform != "linux", reason="hides the loader by its Linux name")
def test_no_loader_on_the_machine(kernels):
    code = (
        """
import sys
sys.modules.pop("vulkan", None)
import cffi, _cffi_backend
class Broken:
    pass
# The binding opens libvulkan when it is imported: let that fail as it does without a loader.
import vulkan._vulkancache as cache
class NoLoader:
    def __getattr__(self, name):
        return getattr(cache_ffi, name)
    def dlopen(self, name, flags=0):
        raise OSError(f"{name}: cannot open shared object file")
cache_ffi = cache.ffi
cache.ffi = NoLoader()
sys.modules.pop("vulkan._vulkan", None)
"""
        + REPORT
    )
    code = code.replace("import vulkan._vulkancache as cache", _IMPORT_WITHOUT_PACKAGE)
    for text in lines(kernels, code):
        assert text.startswith("NoDeviceError")
        assert "no Vulkan loader" in text
        assert "apt install" in text


# Imports the binding's type tables without running the package's __init__, which would open the loader.
_IMPORT_WITHOUT_PACKAGE = """
import importlib.util, types
spec = importlib.util.find_spec("vulkan")
package = types.ModuleType("vulkan")
package.__path__ = list(spec.submodule_search_locations)
sys.modules["vulkan"] = package
import vulkan._vulkancache as cache
"""


def test_the_binding_is_missing(kernels):
    code = "import sys\nsys.modules['vulkan'] = None\n" + REPORT
    for text in lines(kernels, code):
        assert text.startswith("NoDeviceError")
        assert "pip install vulkan" in text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_gets_a_clear_error(kernels):
    code = """
import os, sys
from vkinductor.runtime import context, physical
device = context.get()
address = device.memory.allocate(1000)
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    texts = []
    for call in (context.get, physical.list_devices, lambda: device.stream.fill(address, 4, 0),
                 device.stream.synchronize, lambda: device.memory.allocate(1 << 30)):
        try:
            call()
            texts.append("no error")
        except Exception as error:
            texts.append(type(error).__name__ + (" spawn" if "spawn" in str(error) else ""))
    device.memory.free(address)
    os.write(write, "\\n".join(texts).encode())
    os._exit(0)  # as multiprocessing does: the destructors of some drivers do not survive a fork
_, status = os.waitpid(pid, 0)
print(status)
print(os.read(read, 10000).decode())
device.stream.fill(address, 4, 1)
device.stream.synchronize()
print("parent works")
"""
    status, *texts, parent = lines(kernels, code)
    assert status == "0"
    assert texts[:4] == ["VulkanError spawn"] * 4
    assert texts[4].startswith("VulkanError")
    assert parent == "parent works"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_before_the_first_use_is_fine(kernels):
    code = """
import os
from vkinductor.runtime import context
pid = os.fork()
context.get().memory.allocate(100)
if pid:
    print(os.waitpid(pid, 0)[1])
"""
    assert lines(kernels, code) == ["0"]


def test_exit_with_work_in_flight_and_memory_out(kernels):
    code = """
from vkinductor.runtime import context
device = context.get()
address = device.memory.allocate(1 << 20)
for _ in range(50):
    device.stream.fill(address + 4, 1 << 19, 7)
print("end")
"""
    assert lines(kernels, code, VKINDUCTOR_LIMITS="host_mapping=0") == ["end"]


def test_after_close_nothing_crashes(fresh_device):
    from vkinductor.runtime import context

    device = fresh_device()
    address = device.memory.allocate(100)
    stream, memory = device.stream, device.memory
    context.reset()
    memory.free(address)  # what a late finalizer does
    with pytest.raises(VulkanError, match="closed"):
        memory.allocate(100)
    with pytest.raises(VulkanError, match="closed"):
        stream.synchronize()
    assert context.get() is not device


def test_the_instance_outlives_its_devices(fresh_device, monkeypatch):
    from vkinductor.runtime import context

    first = fresh_device().instance
    for _ in range(40):  # some drivers do not survive being unloaded so often
        context.reset()
        assert context.get().instance is first
    context.reset()
    monkeypatch.setenv("VK_LOADER_DEBUG", "error")  # new instances are made otherwise
    assert context.get().instance is not first
    context.reset()


def test_device_loss_is_sticky_and_names_the_kernels(fresh_device, kernels):
    device = fresh_device()
    a, b = device.memory.allocate(4000), device.memory.allocate(4000)
    kernels.run_scale_add(device, a, b, 1000)
    device.stream.submissions._vk = _LosesTheDevice(device.vk)
    with pytest.raises(DeviceLostError, match="scale_add"):
        device.stream.synchronize()
    for call in (device.stream.synchronize, lambda: kernels.run_scale_add(device, a, b, 1000)):
        with pytest.raises(DeviceLostError, match="new process"):
            call()
    device.stream.submissions._vk = device.vk
    device.memory.free(a)  # what is only bookkeeping still works


class _LosesTheDevice:
    """The device's functions, but a submit reports that it is gone."""

    def __init__(self, vk: object) -> None:
        self._vk = vk

    def __getattr__(self, name: str) -> object:
        return (lambda *_: errors.DEVICE_LOST) if name == "vkQueueSubmit" else getattr(self._vk, name)


@pytest.mark.parametrize(
    ("result", "kind"),
    [(-4, DeviceLostError), (-2, VulkanOutOfMemoryError), (-1, VulkanOutOfMemoryError), (-13, VulkanError)],
)
def test_result_codes_become_typed_errors(result, kind):
    with pytest.raises(kind, match=r"trying.*VK_ERROR"):
        errors.check(result, "trying")
    errors.check(0, "trying")
    errors.check(5, "trying")


def test_environment_readers(monkeypatch, tmp_path):
    monkeypatch.setenv("VKINDUCTOR_CACHE_LIMIT", "123")
    assert env.cache_limit() == 123
    monkeypatch.setenv("VKINDUCTOR_CACHE_LIMIT", "12 MB")
    with pytest.raises(CacheError, match="number of bytes"):
        env.cache_limit()
    monkeypatch.setenv("VKINDUCTOR_CACHE_DIR", str(tmp_path))
    assert env.cache_dir() == tmp_path
    for text, value in (("", False), ("0", False), ("off", False), ("1", True), ("yes", True)):
        monkeypatch.setenv("VKINDUCTOR_POISON", text)
        assert env.poison() is value
    assert all(name.startswith("VKINDUCTOR_") for name in env.VARIABLES)
