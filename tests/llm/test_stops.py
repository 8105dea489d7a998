"""Stop strings across the borders of pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkinductor.llm.stops import StopMatcher


def run(pieces, stops):
    matcher = StopMatcher(stops)
    out = [matcher.push(piece) for piece in pieces]
    return out if matcher.matched is not None else [*out, matcher.flush()], matcher.matched


@pytest.mark.parametrize(
    ("pieces", "stops", "out", "matched"),
    [
        (["ab", "cd"], [], ["ab", "cd", ""], None),
        (["one EN", "D two"], ["END"], ["one ", ""], "END"),
        (["one EN", "d two"], ["END"], ["one ", "ENd two", ""], None),
        (["aa", "ab"], ["aab"], ["", "a"], "aab"),  # a match that begins inside of what was held back
        (["xab"], ["ab", "xabc"], ["x"], "ab"),  # complete first
        (["xab"], ["ab", "xab"], [""], "xab"),  # complete together: the one that begins first
        (["end EN"], ["END"], ["end ", "EN"], None),
    ],
)
def test_pieces(pieces, stops, out, matched):
    assert run(pieces, stops) == (out, matched)


def test_nothing_comes_after_a_match():
    matcher = StopMatcher(["."])
    assert [matcher.push("a.b"), matcher.push("c"), matcher.flush()] == ["a", "", ""]


@given(st.text("ab.", max_size=20), st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3), st.data())
def test_where_the_pieces_end_does_not_matter(text, stops, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    out, matched = run(pieces, stops)
    whole, expected = run(list(text), stops)
    assert ("".join(out), matched) == ("".join(whole), expected)
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if ends:
        assert text.startswith("".join(out) + matched)
        assert len("".join(out) + matched) == min(ends)
    else:
        assert "".join(out) == text
