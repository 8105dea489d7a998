"""libshaderc as a compiler: in-process and fast, where a usable library is installed.

Owns finding the library and deciding whether to trust it: a library is taken only after a child process has
loaded it and compiled with it, because some builds (Debian 12's) lack symbols and one with another ABI would
take this process down.
"""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from vkinductor.runtime.errors import UnsupportedError
from vkinductor.runtime.spirv import shaderc_binding
from vkinductor.runtime.spirv.interface import ProbingCompiler, Target, compile_error, is_spirv

_PROBE_TIMEOUT_S = 30
_FILE_NAMES = {
    "win32": ("shaderc_shared.dll",),
    "darwin": ("libshaderc_shared.1.dylib", "libshaderc_shared.dylib"),
    "linux": ("libshaderc_shared.so.1", "libshaderc_shared.so", "libshaderc.so.1"),
}


class ShadercCompiler(ProbingCompiler):
    """Compiles with libshaderc (the first usable one found, or `library`).

    Raises `UnsupportedError` that lists the libraries tried and why each was refused.
    """

    name = "shaderc"

    def __init__(self, library: str | None = None) -> None:
        super().__init__()
        refused = []
        for candidate in [library] if library else _candidates():
            why, generator = _try(candidate)
            if not why:
                self._shaderc = shaderc_binding.Shaderc(candidate)
                # The library does not tell its own version: what it emits, knows and the file it is stand for
                # one.
                version, revision = self._shaderc.spirv_version()
                self.version = f"spv{version:x}.{revision}-{generator}-{_file_stamp(candidate)}"
                return
            refused.append(f"{candidate}: {why}")
        raise UnsupportedError("no usable libshaderc: " + ("; ".join(refused) or "none is installed"))

    def compile(self, glsl: str, *, name: str, target: Target) -> bytes:
        """See `Compiler.compile`."""
        code, message = self._shaderc.compile(glsl, target.vulkan, target.spirv)
        if message or not is_spirv(code):
            raise compile_error(self, name, message or "libshaderc's output is not SPIR-V", glsl)
        return code


def _candidates() -> Iterator[str]:
    """Libraries worth a try: the Vulkan SDK's first (as a rule the newest), then the system's."""
    for root in filter(None, (os.environ.get("VULKAN_SDK"), os.environ.get("VK_SDK_PATH"))):
        for folder in ("lib", "Bin", "bin"):
            for name in _FILE_NAMES.get(sys.platform, _FILE_NAMES["linux"]):
                path = Path(root) / folder / name
                if path.is_file():
                    yield str(path)
    for short in ("shaderc_shared", "shaderc"):
        if found := ctypes.util.find_library(short):
            yield found


def _try(library: str) -> tuple[str, str]:
    """("", generator word) of a library that works, else (why it cannot be used, "")."""
    # A first look costs no process. Not on Windows, which would show a dialog for a missing symbol.
    if sys.platform != "win32":
        try:
            shaderc_binding.Shaderc(library)
        except (OSError, AttributeError) as error:
            return str(error), ""
    command = [sys.executable, "-I", "-S", shaderc_binding.__file__, library]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"the probe could not be run: {error}", ""
    if done.returncode == 0:
        return "", done.stdout.decode().strip()
    said = done.stderr.decode("utf-8", "replace").strip()[-500:]
    return f"the probe failed with status {done.returncode}: {said}", ""


def _file_stamp(library: str) -> str:
    """Size and time of the library's file: a rebuild of the same version must not hit the other one's
    cache."""
    path = Path(library)
    if not path.is_file() and sys.platform.startswith("linux"):
        maps = Path("/proc/self/maps").read_text().splitlines()
        mapped = (line.split()[-1] for line in maps if library in line)
        path = Path(next(mapped, library))
    try:
        status = path.stat()
    except OSError:
        return "nofile"
    return f"{status.st_size:x}.{status.st_mtime_ns:x}"
