"""Text as it comes: whole characters, and an end before a stop text."""

from __future__ import annotations

import pytest

from vkinductor.llm.prompts import encode, encode_conversation
from vkinductor.llm.text import pieces


class Bytes:
    """Each byte of UTF-8 is a token."""

    chat_template = None

    def encode(self, text, add_special_tokens=True):
        return list(text.encode())

    def decode(self, tokens, skip_special_tokens, clean_up_tokenization_spaces):
        return bytes(tokens).decode("utf-8", "replace")


@pytest.mark.parametrize("text", ["", "plain", "naïve 漢字 🙂🙃!", "🙂"])
def test_pieces_are_whole_characters_and_join_to_the_text(text):
    found = list(pieces(Bytes(), text.encode()))
    assert "".join(found) == text
    assert len(found) == len(text)


def test_a_character_that_never_ends():
    assert "".join(pieces(Bytes(), "a🙂".encode()[:-1])) == "a" + b"\xf0\x9f\x99".decode("utf-8", "replace")


def test_the_text_ends_before_a_stop_and_takes_no_token_more():
    tokens = iter(b"one END two")
    assert "".join(pieces(Bytes(), tokens, ["END", "X"])) == "one "
    assert bytes(tokens) == b" two"
    assert "".join(pieces(Bytes(), b"one EN", ["END"])) == "one EN"


def test_prompts():
    assert encode(Bytes(), "ab") == [97, 98]
    assert encode(Bytes(), (5, 6)) == [5, 6]
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert encode(Bytes(), messages) == encode_conversation(Bytes(), messages) == list(b"a\nb")
