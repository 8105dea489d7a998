"""The tokenizer inside a file: what is built here agrees with `transformers`' own conversion, and typed errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf_writing import gguf

from vkinductor.llm import load
from vkinductor.llm.errors import ModelFormatError, UnsupportedModelError
from vkinductor.llm.gguf_tokenizer import build_tokenizer, load_tokenizer, stop_tokens

transformers = pytest.importorskip("transformers")

TEXT = "Hello world,  it's 2024!\n\tÄpfel <|im_end|> 日本"
PIECES = ["▁", "h", "e", "l", "o", "w", "r", "d", "▁h", "▁w", "he", "ll", "▁he", "ld", "or", "▁hell", "▁hello", "wor"]


def write(path: Path, **changes) -> Path:
    """A file with a small sentencepiece vocabulary: better scores for later pieces."""
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    tokens = ["<unk>", "<s>", "</s>", "<|end|>", *bytes_, *PIECES]
    values = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * 260 + [float(place) for place in range(len(PIECES))],
        "token_type": [2, 3, 3, 3, *[6] * 256, *[1] * len(PIECES)],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **changes,
    }
    writer = gguf.GGUFWriter(str(path), "gemma")
    for key, value in values.items():
        if value is not None:
            add = {int: writer.add_uint32, str: writer.add_string, bool: writer.add_bool}
            add.get(type(value), writer.add_array)(f"tokenizer.ggml.{key}", value)
    writer.add_string("tokenizer.chat_template", "{{ messages[0]['content'] }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_byte_pairs_agree_with_transformers():
    path = load.default_model()
    theirs, ours = load_tokenizer(path, transformers), build_tokenizer(path, transformers)
    assert ours(TEXT)["input_ids"] == theirs(TEXT)["input_ids"]
    assert ours.decode(ours(TEXT)["input_ids"]) == TEXT
    assert (ours.eos_token_id, ours.bos_token_id) == (theirs.eos_token_id, theirs.bos_token_id)
    assert ours.chat_template == theirs.chat_template
    assert load.encode_prompt(ours, "Hi").tolist() == load.encode_prompt(theirs, "Hi").tolist()
    assert stop_tokens(ours, (2,)) == stop_tokens(theirs, (2,)) == (2, 0)


def test_scored_pieces_of_an_architecture_that_transformers_does_not_convert(tmp_path):
    tokenizer = load_tokenizer(write(tmp_path / "model.gguf"), transformers)
    ids = tokenizer("hello world é")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == [
        "<s>", "▁hello", "▁", "wor", "ld", "▁", "<0xC3>", "<0xA9>"
    ]  # fmt: skip
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hello world é"
    assert tokenizer("hello<|end|>")["input_ids"][-1] == 3
    assert tokenizer.chat_template == "{{ messages[0]['content'] }}"
    assert stop_tokens(tokenizer, (2,)) == (2, 3)


def test_no_token_at_the_beginning(tmp_path):
    tokenizer = build_tokenizer(write(tmp_path / "model.gguf", add_bos_token=False), transformers)
    assert tokenizer.convert_ids_to_tokens(tokenizer("he")["input_ids"]) == ["▁he"]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"model": "rwkv"}, UnsupportedModelError, "'rwkv' is not known"),
        ({"scores": None}, ModelFormatError, "scores"),
        ({"scores": [1.0]}, ModelFormatError, "cannot be built"),
        ({"eos_token_id": 1 << 20}, ModelFormatError, "cannot be built"),
        ({"model": "gpt2"}, ModelFormatError, "merges"),
        ({"model": "gpt2", "merges": ["a b"]}, ModelFormatError, "cannot be built"),
    ],
)
def test_vocabularies_that_cannot_be(tmp_path, change, error, words):
    with pytest.raises(error, match=words):
        load_tokenizer(write(tmp_path / "model.gguf", **change), transformers)
