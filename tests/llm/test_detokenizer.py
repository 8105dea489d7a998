"""Pieces of text joined are the text of all tokens, and no piece holds half a character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkinductor.llm.detokenizer import REPLACEMENT, WINDOW, WINDOW_AT_MOST, Detokenizer


def by_bytes(tokens):
    """Byte-level vocabularies; 256 is a special token, which has no text."""
    return bytes(token for token in tokens if token < 256).decode("utf-8", "replace")


def by_fallback(tokens):
    """SentencePiece's with byte fallback: a space before each word but the first, a replacement for each bad byte."""
    words = {300: " one", 301: " two", 302: "s"}
    text, run = "", b""
    for token in [*tokens, -1]:
        if 0 <= token < 256:
            run += bytes([token])
            continue
        try:
            text += run.decode()
        except UnicodeDecodeError:
            text += REPLACEMENT * len(run)
        text, run = text + words.get(token, ""), b""
    return text.removeprefix(" ")


def pieces(decode, tokens):
    detokenizer = Detokenizer(decode)
    return [*(detokenizer.push(token) for token in tokens), detokenizer.flush()]


def test_a_character_appears_when_it_is_whole():
    assert pieces(by_bytes, "aé🙂b".encode()) == ["a", "", "é", "", "", "", "🙂", "b", ""]
    assert pieces(by_fallback, [300, *"🙂".encode(), 302]) == ["one", "", "", "", "🙂", "s", ""]


def test_what_never_becomes_a_character_is_replaced():
    assert pieces(by_bytes, [0x61, 0xE2, 0x82]) == ["a", "", "", REPLACEMENT]
    assert pieces(by_bytes, [0xFF, 0x61]) == ["", REPLACEMENT + "a", ""]


def test_a_space_at_the_start_of_a_window_is_kept():
    tokens = [300, 301, 302] * WINDOW
    assert "".join(pieces(by_fallback, tokens)) == by_fallback(tokens)


@pytest.mark.parametrize("token", [0xFF, 0x80, 256])
def test_the_window_stays_small_without_text(token):
    detokenizer = Detokenizer(by_bytes)
    for _ in range(5 * WINDOW_AT_MOST):
        detokenizer.push(token)
    assert len(detokenizer._window) <= WINDOW_AT_MOST


@given(st.text(max_size=3 * WINDOW), st.data())
def test_bytes_of_any_text(text, data):
    tokens = list(text.encode("utf-8", "ignore"))
    for place in sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=9)), reverse=True):
        tokens.insert(place, 256)
    out = pieces(by_bytes, tokens)
    assert "".join(out) == by_bytes(tokens)
    if REPLACEMENT not in text:
        assert not any(REPLACEMENT in piece for piece in out)


@given(
    st.lists(
        st.one_of(
            st.sampled_from([[300], [301], [302]]), st.characters().map(lambda c: list(c.encode("utf-8", "ignore")))
        ),
        max_size=40,
    )
)
def test_words_and_bytes(groups):
    tokens = [token for group in groups for token in group]
    assert "".join(pieces(by_fallback, tokens)) == by_fallback(tokens)


@given(st.lists(st.integers(0, 255), max_size=60))
def test_any_bytes_at_all(tokens):
    assert "".join(pieces(by_bytes, tokens)) == by_bytes(tokens)
