"""The `glslc` program as a compiler: the last resort, 100 to 150 ms a shader, one process each."""

from __future__ import annotations

import hashlib
import shutil
import subprocess

from vkinductor.runtime.errors import UnsupportedError
from vkinductor.runtime.spirv.interface import (
    ProbingCompiler,
    Target,
    compile_error,
    is_spirv,
)

_TIMEOUT_S = 120  # a large unrolled shader takes seconds; a hung program must not hang a training run


class GlslcCompiler(ProbingCompiler):
    """Compiles with `glslc` from PATH (or `program`). Raises `UnsupportedError` when it is missing or does
    not run."""

    name = "glslc"

    def __init__(self, program: str = "glslc") -> None:
        super().__init__()
        path = shutil.which(program)
        if path is None:
            raise UnsupportedError(f"no program `{program}` on PATH: install shaderc or the Vulkan SDK")
        self._path = path
        try:
            text = subprocess.run([path, "--version"], capture_output=True, timeout=_TIMEOUT_S, check=True).stdout
        except (OSError, subprocess.SubprocessError) as error:
            raise UnsupportedError(f"`{program} --version` failed: {error}") from error
        # Four lines name shaderc, spirv-tools, glslang and the default target: all of them belong in the key.
        first = text.decode("utf-8", "replace").split("\n", 1)[0].removeprefix("shaderc").strip() or "unknown"
        self.version = f"{first}-{hashlib.sha256(text).hexdigest()[:8]}"

    def compile(self, glsl: str, *, name: str, target: Target) -> bytes:
        """See `Compiler.compile`."""
        command = [
            self._path,
            "-fshader-stage=compute",
            f"--target-env=vulkan{target.vulkan[0]}.{target.vulkan[1]}",
            f"--target-spv=spv{target.spirv[0]}.{target.spirv[1]}",
            "-o",
            "-",
            "-",
        ]
        try:
            done = subprocess.run(command, input=glsl.encode(), capture_output=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            raise compile_error(self, name, f"the program could not be run: {error}", glsl) from error
        if done.returncode != 0 or not is_spirv(done.stdout):
            message = done.stderr.decode("utf-8", "replace") or f"exit status {done.returncode}, no message"
            raise compile_error(self, name, message, glsl)
        return done.stdout
