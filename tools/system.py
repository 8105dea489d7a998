"""The system's part of the setup: is there a Vulkan device, and Debian packages when something is missing.

Uses the standard library alone, since it runs before anything is installed. Owns the check and the apt calls.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

SOFTWARE_DRIVER = ("libvulkan1", "mesa-vulkan-drivers")
VALIDATION_LAYER = ("vulkan-validationlayers",)


class SetupError(RuntimeError):
    """The setup cannot go on; the message says what to do by hand."""


def say(message: str) -> None:
    """Print one line of progress, at once."""
    print(f"setup: {message}", flush=True)


def vulkan_device_count() -> int:
    """Devices that the Vulkan loader shows; 0 without a loader or a driver.

    Runs in a process of its own: a broken driver then cannot take the setup down with it.
    """
    result = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
    return int(result.stdout) if result.returncode == 0 else 0


def ensure_vulkan() -> None:
    """Install Mesa's software driver if no device is there. Raises SetupError if that cannot be done."""
    if vulkan_device_count():
        return
    say("this system has no Vulkan device: installing a software driver (" + " ".join(SOFTWARE_DRIVER) + ")")
    apt_install(SOFTWARE_DRIVER)
    if not vulkan_device_count():
        variables = [name for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES") if os.environ.get(name)]
        hint = f" ({' and '.join(variables)} is set: unset it)" if variables else ""
        raise SetupError(f"there is still no Vulkan device after installing the software driver{hint}")


def ensure_validation_layer() -> None:
    """Install the Khronos validation layer if it can be done; tests run without it otherwise."""
    if has_validation_layer():
        return
    say("installing the Vulkan validation layer for the tests")
    try:
        apt_install(VALIDATION_LAYER)
    except SetupError as error:
        say(f"going on without the validation layer: {error}")


def has_validation_layer() -> bool:
    """Whether a manifest of the layer lies in one of the places the loader looks at."""
    roots = os.environ.get("XDG_DATA_DIRS", "/usr/local/share:/usr/share").split(":")
    folders = [os.path.join(root, "vulkan", "explicit_layer.d") for root in [*roots, "/etc"]]
    folders += filter(None, os.environ.get("VK_LAYER_PATH", "").split(":"))
    return any(os.path.isfile(os.path.join(folder, "VkLayer_khronos_validation.json")) for folder in folders)


def apt_install(packages: Sequence[str]) -> None:
    """Install Debian packages as root or through sudo. Raises SetupError with the command to run by hand."""
    by_hand = f"as root, run: apt-get install {' '.join(packages)}"
    if shutil.which("apt-get") is None:
        raise SetupError(f"no apt-get here: install the equivalent of {', '.join(packages)} by hand")
    prefix: list[str] = []
    if os.geteuid() != 0:
        if shutil.which("sudo") is None:
            raise SetupError(f"installing packages needs root or sudo; {by_hand}")
        # Without a terminal sudo could only wait for a password that nobody can give.
        prefix = ["sudo"] if sys.stdin.isatty() else ["sudo", "-n"]
    environment = ["env", "DEBIAN_FRONTEND=noninteractive"]
    subprocess.run([*prefix, "apt-get", "update", "-qq"], check=False)
    install = ["apt-get", "install", "-y", "-qq", "-o=Dpkg::Use-Pty=0", "--no-install-recommends", *packages]
    if subprocess.run([*prefix, *environment, *install], check=False).returncode != 0:
        raise SetupError(f"apt-get failed; {by_hand}")


class _InstanceCreateInfo(ctypes.Structure):
    """VkInstanceCreateInfo with nothing asked for: an instance of Vulkan 1.0, enough to count devices."""

    _fields_ = (
        ("s_type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("application_info", ctypes.c_void_p),
        ("layer_count", ctypes.c_uint32),
        ("layer_names", ctypes.c_void_p),
        ("extension_count", ctypes.c_uint32),
        ("extension_names", ctypes.c_void_p),
    )


def _count_devices() -> int:
    library = ctypes.util.find_library("vulkan") or "libvulkan.so.1"
    try:
        vulkan = ctypes.CDLL(library)
    except OSError:
        return 0
    info = _InstanceCreateInfo(s_type=1)  # VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO
    instance = ctypes.c_void_p()
    if vulkan.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance)) != 0:
        return 0
    count = ctypes.c_uint32()
    if vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None) != 0:
        return 0
    return count.value


if __name__ == "__main__":
    print(_count_devices())
