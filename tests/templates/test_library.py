"""Rendering, cutting the library into functions, and the catalog: nothing here runs a shader."""

from __future__ import annotations

import jinja2
import pytest

from vkinductor.runtime.spirv import Target, find_compiler
from vkinductor.templates import functions, library, library_functions, render
from vkinductor.templates.catalog import CONVERSIONS, FUNCTIONS
from vkinductor.templates.functions import _all_blocks, _blocks

HEADER = (
    "#version 460\n#extension GL_EXT_shader_explicit_arithmetic_types : require\n"
    "#extension GL_EXT_shader_16bit_storage : require\n#extension GL_EXT_control_flow_attributes : require\n"
)
ZERO = {"float": "0.0", "double": "0.0lf", "int": "0", "int64_t": "int64_t(0)"}


@pytest.fixture(scope="module")
def compiler():
    return find_compiler()


def test_no_names_no_text():
    assert library([]) == ""


def test_only_what_is_needed_and_callees_first():
    text = library(["vk_log1p"])
    assert text.index("float vk_log_tail") < text.index("float vk_log(") < text.index("float vk_log1p(")
    assert text.count("float vk_log(") == 1
    assert "vk_exp" not in text
    assert "//" not in text


def test_the_order_of_names_does_not_matter():
    assert library(["vk_exp", "vk_log", "vk_max"]) == library(("vk_max", "vk_exp", "vk_log", "vk_exp"))


def test_overloads_come_together():
    text = library(["vk_truncdiv"])
    assert all(f"{t} vk_truncdiv({t} a" in text for t in ("int", "uint", "int64_t", "uint64_t"))


def test_float_shaders_hold_no_doubles():
    for function in FUNCTIONS.values():
        assert "double" not in library([function.name]), function.name


def test_a_half_that_stays_a_float_is_rounded_on_integers():
    """NVIDIA's compiler drops a conversion to a half and back."""
    assert "float16_t" not in library(["vk_round_f16"])
    assert "float16_t" in library(["vk_f32_to_f16"])


def test_an_unknown_name_is_named():
    with pytest.raises(KeyError, match="vk_nonsense"):
        library(["vk_nonsense"])


def test_a_caller_of_an_unknown_name_is_found(monkeypatch):
    blocks = dict(_all_blocks())
    blocks["vk_caller"] = (len(blocks), "float vk_caller() {\n    return vk_lost();\n}", frozenset({"vk_lost"}))
    monkeypatch.setattr(functions, "_all_blocks", lambda: blocks)
    with pytest.raises(KeyError, match=r"vk_lost.*vk_caller calls it"):
        library(["vk_caller"])


@pytest.mark.parametrize(("text", "message"), [("int vk_open() {\n", "has no end"), ("return 1;\n", "not the start")])
def test_a_broken_library_file_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        _blocks(text, "broken.glsl")


def test_definitions_are_cut_by_kind():
    text = """// why
const float VK_A = 1.0;
#define VK_B \\
    2
const uint VK_C[2] = uint[2](
    1u, 2u
);
int vk_d() {
    return VK_B;
}
"""
    blocks = _blocks(text, "kinds.glsl")
    assert [block.name for block in blocks] == ["VK_A", "VK_B", "VK_C", "vk_d"]
    assert blocks[-1].needs == {"VK_B"}


def test_render_refuses_holes():
    with pytest.raises(jinja2.TemplateNotFound):
        render("no_such_template.glsl.jinja")


def call(function, kinds: dict[str, str], double: bool) -> str:
    arguments = ", ".join(ZERO[kinds.get(kind, kind)] for kind in function.arguments)
    return f"{function.spelling(double)}({arguments})"


@pytest.mark.parametrize("operator", sorted(FUNCTIONS))
def test_the_catalog_tells_the_truth(compiler, operator):
    """Each function exists, takes what the catalog says, gives what it says, and compiles with nothing else
    around."""
    function = FUNCTIONS[operator]
    forms = [({"real": "float"}, False), *([({"real": "double"}, True)] if function.double else [])]
    if "integer" in function.arguments:
        forms = [({"integer": register}, False) for register in ("int", "int64_t")]
    for kinds, double in forms:
        name = function.spelling(double)
        result = kinds.get(function.result, function.result)
        body = f"{result} result = {call(function, kinds, double)};"
        glsl = f"{HEADER}{library([name])}layout(local_size_x = 1) in;\nvoid main() {{ {body} }}\n"
        assert compiler.compile(glsl, name=name, target=Target()), name


def test_functions_without_doubles_say_so():
    with pytest.raises(KeyError, match="vk_rand"):
        FUNCTIONS["rand"].spelling(double=True)


def test_conversions_exist():
    assert set(CONVERSIONS.values()) <= library_functions()


def test_every_function_compiles_alone(compiler):
    """Also those that only other functions call. What uses the kernel's buffer types is left out."""
    for name in sorted(name for name in library_functions() if "Buffer_" not in library([name])):
        compiler.compile(f"{HEADER}{library([name])}void main() {{}}\n", name=name, target=Target())
