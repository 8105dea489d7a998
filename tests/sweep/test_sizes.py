"""Sizes that are tried: all of a range, and next to edges."""

from __future__ import annotations

import itertools

from vkinductor.sweep.sizes import Span, sample


def test_edges_and_their_neighbours():
    assert Span(edges=(16, 1)).at_edges() == [1, 2, 15, 16, 17]
    assert Span(2, 9, edges=(1, 20)).at_edges() == [2, 19, 20, 21]


def test_every_length_comes_up_before_long():
    spans = {"m": Span(edges=(16, 128)), "n": Span(), "k": Span(edges=(256,))}
    drawn = list(itertools.islice(sample(spans, 3), 400))
    for name in spans:
        assert set(range(1, 131)) <= {sizes[name] for sizes in drawn}
    assert {15, 16, 17, 127, 128, 129} <= {sizes["m"] for sizes in drawn[:200]}
    assert {255, 256, 257} <= {sizes["k"] for sizes in drawn[:200]}


def test_a_seed_makes_the_same_sizes():
    spans = {"m": Span(edges=(16,)), "k": Span(2, 9)}
    first, again, other = (list(itertools.islice(sample(spans, seed), 20)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert all(2 <= sizes["k"] <= 9 for sizes in first)
