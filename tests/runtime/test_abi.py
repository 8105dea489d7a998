"""The kernel ABI: layout, packing in declared order, the bias of poison mode."""

from __future__ import annotations

import struct

import pytest

from vkinductor.runtime.abi import ArgumentLayout
from vkinductor.runtime.deviceinfo import Limits

MIXED = ArgumentLayout((("n", "i32"), ("x", "ptr"), ("s", "f32"), ("y", "ptr"), ("k", "i64"), ("d", "f64")))


def test_eight_byte_fields_come_first_and_nothing_is_padded():
    assert MIXED.nbytes == 40
    assert MIXED.offsets == {"x": 0, "y": 8, "k": 16, "d": 24, "n": 32, "s": 36}


def test_values_are_given_in_declared_order():
    packed = MIXED.packer()(7, 1 << 40, 0.5, 2, -3, 1.25)
    assert packed == struct.pack("<QQqdif", 1 << 40, 2, -3, 1.25, 7, 0.5)


def test_bias_is_taken_off_pointers_but_not_off_null_or_integers():
    bias = 1 << 62
    packed = MIXED.packer(bias)(7, bias + 4096, 0.5, 0, bias, 1.0)
    assert packed == struct.pack("<QQqdif", 4096, 0, bias, 1.0, 7, 0.5)


def test_ordered_pointers_with_bias():
    layout = ArgumentLayout((("x", "ptr"), ("n", "u32")))
    assert layout.packer(1 << 62)((1 << 62) + 16, 5) == struct.pack("<QI", 16, 5)


def test_an_integer_out_of_range_raises():
    with pytest.raises(struct.error):
        ArgumentLayout((("n", "i32"),)).packer()(1 << 31)


def test_inline_by_the_limit():
    layout = ArgumentLayout(tuple((f"p{i}", "ptr") for i in range(17)))
    assert layout.nbytes == 136
    assert not layout.inline(Limits(max_push_constants=128))
    assert layout.inline(Limits(max_push_constants=256))


def test_glsl_declares_fields_in_memory_order():
    text = MIXED.glsl(True)
    names = [line.split()[1].rstrip(";") for line in text.splitlines() if line.startswith("    ")]
    assert names == ["x", "y", "k", "d", "n", "s"]
    assert "#define ARG" in text
    assert "buffer_reference_align = 16" in MIXED.glsl(False)


def test_empty_layout_declares_nothing():
    layout = ArgumentLayout(())
    assert (layout.nbytes, layout.glsl(True), layout.packer()()) == (0, "", b"")


@pytest.mark.parametrize(
    "fields",
    [(("x", "f16"),), (("x", "ptr"), ("x", "i32")), (("2x", "ptr"),), (("a b", "ptr"),), (("out", "ptr"),)],
)
def test_bad_fields_are_refused(fields):
    with pytest.raises(ValueError, match="argument"):
        ArgumentLayout(fields)
