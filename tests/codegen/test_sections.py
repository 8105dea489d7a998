"""Values that cross from one section of a reduction kernel to another."""

from __future__ import annotations

from vkinductor.codegen.sections import Section, declared, hoist


def test_declarations_are_found_by_register_type() -> None:
    lines = ["float tmp0 = a.d[x];", "  int64_t tmp1;", "tmp2 = 3;", "const int r0_1 = 2;", "float tmp_m3 = 1.0;"]
    assert declared(lines) == {"tmp0": "float", "tmp1": "int64_t"}


def test_a_value_used_only_at_home_stays() -> None:
    section = Section(True, body=["float tmp0 = a.d[i];", "acc0 = acc0 + tmp0;"])
    assert hoist([section], 4) == []
    assert section.body == ["float tmp0 = a.d[i];", "acc0 = acc0 + tmp0;"]


def test_a_loop_value_read_later_becomes_an_array() -> None:
    first = Section(True, body=["float tmp0 = a.d[i];", "acc0 = acc0 + tmp0;"], after=["float tmp1 = acc0;"])
    second = Section(True, body=["float tmp10 = tmp0 - tmp1;", "out.d[i] = tmp10;"])
    assert hoist([first, second], 4) == ["float tmp0[4];"]
    assert first.body == ["tmp0[k] = a.d[i];", "acc0 = acc0 + tmp0[k];"]
    assert second.body[0] == "float tmp10 = tmp0[k] - tmp1;"


def test_with_one_element_a_lane_it_is_a_scalar() -> None:
    first = Section(True, body=["float tmp0 = a.d[i];"])
    second = Section(True, body=["out.d[i] = tmp0;"])
    assert hoist([first, second], 1) == ["float tmp0;"]
    assert first.body == ["tmp0 = a.d[i];"]


def test_a_flat_value_is_a_scalar_everywhere() -> None:
    flat = Section(False, body=["int tmp0 = b.d[x];"])
    loop = Section(True, body=["float tmp1 = a.d[i + tmp0];"])
    assert hoist([flat, loop], 8) == ["int tmp0;"]
    assert loop.body == ["float tmp1 = a.d[i + tmp0];"]


def test_a_value_without_an_initialiser_loses_its_line() -> None:
    first = Section(True, body=["float tmp0;", "if (c) {", "    tmp0 = 1.0;", "} else { tmp0 = 2.0; }"])
    second = Section(True, body=["out.d[i] = tmp0;"])
    assert hoist([first, second], 2) == ["float tmp0[2];"]
    assert first.body == ["if (c) {", "    tmp0[k] = 1.0;", "} else { tmp0[k] = 2.0; }"]


def test_names_that_begin_alike_are_told_apart() -> None:
    first = Section(True, body=["float tmp1 = a.d[i];", "float tmp11 = b.d[i];", "acc0 = acc0 + tmp11;"])
    second = Section(True, body=["out.d[i] = tmp1;"])
    assert hoist([first, second], 2) == ["float tmp1[2];"]
    assert first.body == ["tmp1[k] = a.d[i];", "float tmp11 = b.d[i];", "acc0 = acc0 + tmp11;"]


def test_a_value_stored_once_a_row_leaves_the_loop() -> None:
    # Reading it in `row` of its own section is outside of the section's scope as well.
    section = Section(False, body=["float tmp0 = a.d[x];"], row=["out.d[x] = tmp0;"])
    assert hoist([section], 1) == ["float tmp0;"]
    assert section.body == ["tmp0 = a.d[x];"]
