"""libshaderc's C interface, bound with ctypes and nothing else.

This file imports only the standard library because it is also a program: `python shaderc_binding.py LIBRARY`
loads the library and compiles with it, and its exit status tells the parent whether the library can be
trusted. The functions and numbers are those of shaderc.h and env.h of the shaderc project, whose C interface
has been stable since 2016.
"""

from __future__ import annotations

import ctypes
import sys

_KIND_COMPUTE = 2
_STATUS_SUCCESS = 0
_ENV_VULKAN = 0

_VOID, _TEXT, _INT, _SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t
# function: (result, arguments)
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "shaderc_compiler_initialize": (_VOID, []),
    "shaderc_compile_options_initialize": (_VOID, []),
    "shaderc_compile_options_release": (None, [_VOID]),
    "shaderc_compile_options_set_target_env": (None, [_VOID, _INT, ctypes.c_uint32]),
    "shaderc_compile_options_set_target_spirv": (None, [_VOID, _INT]),
    "shaderc_compile_into_spv": (_VOID, [_VOID, _TEXT, _SIZE, _INT, _TEXT, _TEXT, _VOID]),
    "shaderc_result_get_compilation_status": (_INT, [_VOID]),
    "shaderc_result_get_error_message": (_TEXT, [_VOID]),
    "shaderc_result_get_bytes": (_VOID, [_VOID]),
    "shaderc_result_get_length": (_SIZE, [_VOID]),
    "shaderc_result_release": (None, [_VOID]),
    "shaderc_get_spv_version": (None, [ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_uint)]),
}


class Shaderc:
    """One loaded libshaderc with one compiler object, which many threads may use at once (shaderc.h says so).

    Raises `OSError` or `AttributeError` when the library or one of its functions is missing.
    """

    def __init__(self, library: str) -> None:
        # ctypes resolves all symbols at once, so a library that lacks some (Debian 12's) raises here, not in
        # a call.
        self._lib = ctypes.CDLL(library)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._lib, name)
            function.restype, function.argtypes = result, arguments
        self._handle = None

    def spirv_version(self) -> tuple[int, int]:
        """The newest SPIR-V the library knows: version word and revision."""
        version, revision = ctypes.c_uint(), ctypes.c_uint()
        self._lib.shaderc_get_spv_version(ctypes.byref(version), ctypes.byref(revision))
        return version.value, revision.value

    def compile(self, glsl: str, vulkan: tuple[int, int], spirv: tuple[int, int]) -> tuple[bytes, str]:
        """(SPIR-V, "") of a compute shader, or (b"", message)."""
        lib = self._lib
        if self._handle is None:
            self._handle = lib.shaderc_compiler_initialize()  # lives as long as the process
        options = lib.shaderc_compile_options_initialize()
        try:
            lib.shaderc_compile_options_set_target_env(options, _ENV_VULKAN, vulkan[0] << 22 | vulkan[1] << 12)
            lib.shaderc_compile_options_set_target_spirv(options, spirv[0] << 16 | spirv[1] << 8)
            source = glsl.encode()
            result = lib.shaderc_compile_into_spv(
                self._handle, source, len(source), _KIND_COMPUTE, b"shader", b"main", options
            )
        finally:
            lib.shaderc_compile_options_release(options)
        if not result:
            return b"", "libshaderc returned no result (out of memory?)"
        try:
            if lib.shaderc_result_get_compilation_status(result) != _STATUS_SUCCESS:
                message = lib.shaderc_result_get_error_message(result) or b"no message"
                return b"", message.decode("utf-8", "replace")
            code = ctypes.string_at(lib.shaderc_result_get_bytes(result), lib.shaderc_result_get_length(result))
        finally:
            lib.shaderc_result_release(result)
        return code, ""


def probe(library: str) -> tuple[str, str]:
    """("", generator word in hex) for a library that works, else (what is wrong with it, "").

    May end the process: call it in a child. One target only: a first compile for each takes 0.1 s.
    """
    try:
        shaderc = Shaderc(library)
    except (OSError, AttributeError) as error:
        return str(error), ""
    code, message = shaderc.compile("#version 460\nvoid main() {}\n", (1, 2), (1, 5))
    if code[:8] != b"\x03\x02\x23\x07\x00\x05\x01\x00":
        return f"an empty shader does not give SPIR-V 1.5 but {code[:8].hex()!r}: {message}", ""
    wrong, message = shaderc.compile("#version 460\nvoid main() { nothing(); }\n", (1, 2), (1, 5))
    if wrong or "nothing" not in message:
        return "a wrong shader is not refused", ""
    return "", code[8:12][::-1].hex()


if __name__ == "__main__":
    trouble, generator = probe(sys.argv[1])
    print(generator)
    sys.exit(trouble or 0)
