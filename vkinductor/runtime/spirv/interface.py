"""What a GLSL compiler is to the rest of the runtime, and the parts that every provider shares.

Owns the `Compiler` protocol, the `Target` it compiles for, the extension probe and the text of compile
errors. The providers are one module each.
"""

from __future__ import annotations

import re
import struct
import threading
from dataclasses import dataclass
from typing import Protocol

from vkinductor.runtime.errors import ShaderCompileError, UnsupportedError

SPIRV_MAGIC = 0x07230203

# The newest SPIR-V that a Vulkan version must accept (Vulkan specification, appendix "SPIR-V environment").
_SPIRV_OF_VULKAN = {(1, 2): (1, 5), (1, 3): (1, 6)}

# glslang names the line as `0:17:` (source string, line), shaderc as `name:17:`.
_ERROR_LINE = re.compile(r"^(?:ERROR: 0|[^\s:]+):(\d+):", re.MULTILINE)

# The comment that ends a line of GLSL which a user has registered: where it stands in the user's text.
_WRITTEN_AT = re.compile(r"\s*// (line \d+ of the GLSL of \S+)$")


@dataclass(frozen=True)
class Target:
    """The environment a shader is compiled for: a Vulkan version, (1, 2) or (1, 3).

    Raises `UnsupportedError` for any other version. Devices of Vulkan 1.4 take (1, 3): nothing in 1.4 changes
    SPIR-V.
    """

    vulkan: tuple[int, int] = (1, 2)

    def __post_init__(self) -> None:
        if self.vulkan not in _SPIRV_OF_VULKAN:
            known = ", ".join(f"{major}.{minor}" for major, minor in _SPIRV_OF_VULKAN)
            raise UnsupportedError(f"no SPIR-V target for Vulkan {self.vulkan}: the known ones are {known}")

    @property
    def spirv(self) -> tuple[int, int]:
        """The SPIR-V version of the modules: (1, 5) for Vulkan 1.2, (1, 6) for 1.3."""
        return _SPIRV_OF_VULKAN[self.vulkan]

    def __str__(self) -> str:
        return f"vulkan{self.vulkan[0]}.{self.vulkan[1]}-spv{self.spirv[0]}.{self.spirv[1]}"


class Compiler(Protocol):
    """A GLSL 460 compute-shader compiler. Instances may be shared by threads."""

    name: str
    version: str

    def compile(self, glsl: str, *, name: str, target: Target) -> bytes:
        """SPIR-V of the whole program `glsl` (no #include), whose entry point is `main`.

        Raises `ShaderCompileError` with the compiler's message and the numbered source; `name` names the
        kernel in it.
        """
        ...

    def key(self, target: Target | None = None) -> str:
        """Provider, version and (when given) target: what a cache key must hold beside the GLSL."""
        ...

    def supports(self, extension: str) -> bool:
        """Whether the compiler knows the GLSL extension `extension`, found by compiling a tiny shader
        (remembered)."""
        ...


class ProbingCompiler:
    """The shared half of the providers: keys, and extension probes that are remembered."""

    name: str
    version: str

    def __init__(self) -> None:
        self._supported: dict[str, bool] = {}
        self._lock = threading.Lock()

    def compile(self, glsl: str, *, name: str, target: Target) -> bytes:
        """See `Compiler.compile`."""
        raise NotImplementedError

    def key(self, target: Target | None = None) -> str:
        """See `Compiler.key`."""
        return f"{self.name}-{self.version}" + (f"-{target}" if target is not None else "")

    def supports(self, extension: str) -> bool:
        """See `Compiler.supports`."""
        with self._lock:
            known = self._supported.get(extension)
        if known is None:
            try:
                self.compile(probe_shader(extension), name=f"probe {extension}", target=Target((1, 3)))
                known = True
            except ShaderCompileError:
                known = False
            with self._lock:
                self._supported[extension] = known
        return known


def probe_shader(extension: str | None = None) -> str:
    """A shader that does nothing, and requires `extension` when it is given."""
    require = f"#extension {extension} : require\n" if extension else ""
    return f"#version 460\n{require}layout(local_size_x = 1) in;\nvoid main() {{}}\n"


def is_spirv(code: bytes) -> bool:
    """Whether `code` looks like a module: whole words, the magic number, more than a header."""
    return len(code) > 20 and len(code) % 4 == 0 and struct.unpack_from("<I", code)[0] == SPIRV_MAGIC


def numbered(glsl: str, marked: frozenset[int] = frozenset()) -> str:
    """`glsl` with line numbers as compilers count them (from 1); the lines in `marked` get an arrow."""
    lines = glsl.splitlines()
    width = len(str(len(lines)))
    return "\n".join(f"{'>' if i in marked else ' '}{i:{width}} | {line}" for i, line in enumerate(lines, 1))


def compile_error(compiler: ProbingCompiler, name: str, message: str, glsl: str) -> ShaderCompileError:
    """The error for a shader that `compiler` refused: its message, then the numbered source with the bad
    lines marked."""
    marked = frozenset(int(line) for line in _ERROR_LINE.findall(message))
    head = f"{compiler.name} {compiler.version} refused the shader {name!r}:"
    lines = glsl.splitlines()
    written = [_WRITTEN_AT.search(lines[i - 1]) for i in sorted(marked) if 0 < i <= len(lines)]
    places = "".join(f"\nat {place[1]}: {place.string[: place.start()].strip()}" for place in written if place)
    return ShaderCompileError(f"{head}\n{message.strip()}{places}\n\n{numbered(glsl, marked)}")
