"""Programs of a family: every option early, names that make them again."""

from __future__ import annotations

import itertools

import pytest
import torch

from vkinductor.runtime import context
from vkinductor.sweep.check import draw
from vkinductor.sweep.families import FAMILIES
from vkinductor.sweep.program import named, parsed, programs
from vkinductor.sweep.sizes import sample


@pytest.mark.parametrize("name", FAMILIES)
def test_every_option_comes_up_and_is_named(name):
    family, info = FAMILIES[name], context.get().info
    found = list(itertools.islice(programs(family, info, 0), 90))
    axes = family.axes(info)
    assert len({own.name for own in found}) == len(found)
    for axis, options in axes.items():
        assert {parsed(own.name)[1][axis] for own in found} == set(options), axis
    assert [own.name for own in itertools.islice(programs(family, info, 0), 9)] == [own.name for own in found[:9]]
    for own in found[:9]:
        whose, choice = parsed(own.name)
        assert whose == name
        assert named(family, info, choice).name == own.name


@pytest.mark.parametrize("name", FAMILIES)
def test_operands_depend_on_name_sizes_and_seed_alone(name):
    own = next(programs(FAMILIES[name], context.get().info, 0))
    sizes = next(sample(own.program.spans, 0))
    first, again = (own.program.operands(sizes, draw(own.name, sizes, 0)) for _ in range(2))
    tensors = [(a, b) for a, b in zip(first, again, strict=True) if isinstance(a, torch.Tensor)]
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in tensors)


def test_pairs_of_options_come_before_repetitions():
    """24 layouts and dtypes of two axes in the first 40 programs of thousands."""
    family, info = FAMILIES["products, direct"], context.get().info
    axes = family.axes(info)
    choices = [parsed(own.name)[1] for own in itertools.islice(programs(family, info, 1), 60)]
    seen = {(choice["dtype"], choice["a"]) for choice in choices}
    assert len(seen) >= 0.9 * len(axes["dtype"]) * len(axes["a"])


def test_what_is_no_name():
    with pytest.raises(ValueError, match="not the name"):
        parsed("products: tile")
