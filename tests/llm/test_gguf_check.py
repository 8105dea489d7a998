"""GGUF files that lie: each is refused with a typed error before anything is allocated for it."""

from __future__ import annotations

import contextlib
import random
import struct
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from vkinductor.llm import load
from vkinductor.llm.errors import MissingDependencyError, ModelFormatError
from vkinductor.llm.gguf_check import check, examine

gguf = pytest.importorskip("gguf")

WIDTH, HIDDEN, LAYERS, WORDS = 32, 64, 2, 40


def write(path: Path, **changes) -> Path:
    """A small llama, with hyperparameters replaced by ``changes`` (None: left out)."""
    values = {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": WIDTH,
        "feed_forward_length": HIDDEN,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "rope.dimension_count": 8,
        "vocab_size": WORDS,
        **changes,
    }
    writer = gguf.GGUFWriter(str(path), "llama")
    for key, value in values.items():
        if value is not None:
            writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_array("tokenizer.ggml.tokens", [f"word{i}" for i in range(WORDS)])
    writer.add_array("tokenizer.ggml.token_type", [1] * WORDS)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    shapes = {"token_embd.weight": (WORDS, WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_q.weight": (WIDTH, WIDTH),
            f"blk.{layer}.ffn_down.weight": (WIDTH, HIDDEN),
        }
    for name, shape in shapes.items():
        writer.add_tensor(name, np.ones(shape, np.float32))
    quantized = gguf.quants.quantize(np.ones((4, WIDTH), np.float32), gguf.GGMLQuantizationType.Q4_0)
    writer.add_tensor("extra", quantized, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    return write(tmp_path_factory.mktemp("gguf") / "model.gguf").read_bytes()


def refused(content: bytes, words: str) -> None:
    with pytest.raises(ModelFormatError, match=words):
        examine(content, "model.gguf")


def test_a_whole_file(tmp_path):
    contents = check(write(tmp_path / "model.gguf"))
    assert contents.values["llama.block_count"] == LAYERS
    assert contents.values["tokenizer.ggml.tokens"][:2] == [b"word0", b"word1"]
    assert contents.shapes["blk.1.ffn_down.weight"] == (HIDDEN, WIDTH)
    assert contents.shapes["extra"] == (WIDTH, 4)


def test_without_the_package_that_reads_them(whole, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'vkinductor\[demo\]'"):
        examine(whole, "model.gguf")


def test_the_default_model():
    assert check(load.default_model()).values["llama.block_count"] == 30


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block_count": 1 << 31}, "tensors of 2 layers"),
        ({"embedding_length": 1 << 30}, "'token_embd.weight' has 32"),
        ({"vocab_size": 1 << 31}, "'token_embd.weight' has 40"),
        ({"feed_forward_length": 0}, "'blk.0.ffn_down.weight' has 64"),
        ({"attention.head_count": 0}, "no tensor is wider"),
        ({"attention.head_count_kv": 1 << 20}, "no tensor is wider than 64"),
        ({"rope.dimension_count": 1 << 31}, "no tensor is wider"),
        ({"context_length": (1 << 32) - 1}, "believable"),
    ],
)
def test_hyperparameters_that_contradict_the_tensors(tmp_path, change, words):
    with pytest.raises(ModelFormatError, match=words):
        check(write(tmp_path / "model.gguf", **change))


def test_counts_that_the_file_has_no_room_for(whole):
    for place in (8, 16):  # the number of tensors, of keys
        refused(whole[:place] + struct.pack("<Q", 1 << 60) + whole[place + 8 :], "cannot be in the")


def test_a_list_longer_than_the_file(whole):
    at = whole.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
    refused(whole[:at] + struct.pack("<Q", 1 << 62) + whole[at + 8 :], "elements of 'tokenizer.ggml.tokens'")


def test_a_token_that_tokenizers_would_never_be_done_with(whole):
    at = whole.index(b"word7") - 8
    refused(whole[:at] + struct.pack("<Q", 2000) + bytes(2000) + whole[at + 8 + 5 :], "has a length of 2000")


def test_lists_of_lists_of_lists(whole):
    nested = struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 1000
    key = struct.pack("<Q", 1) + b"k" + nested
    header = whole[:16] + struct.pack("<Q", 1) + key
    refused(header, "unknown type 9")


def test_versions(whole):
    refused(whole[:4] + struct.pack(">I", 3) + whole[8:], "other byte order")
    refused(whole[:4] + struct.pack("<I", 99) + whole[8:], "version 99")


def test_shapes_that_multiply_to_less_than_they_are(whole):
    name = b"output_norm.weight"
    at = whole.index(name) + len(name)
    shape = struct.pack("<I", 4) + struct.pack("<4Q", 1 << 32, 1 << 32, 1, 1)  # 2^64: zero in 64 bits
    refused(whole[:at] + shape + whole[at + 12 :], "bytes at|has the unknown|no whole blocks|of a file")


def test_a_name_that_is_there_twice(whole):
    refused(whole.replace(b"blk.1.attn_q.weight", b"blk.0.attn_q.weight"), "twice")


@pytest.mark.parametrize("length", [0, 1, 4, 23])
def test_files_shorter_than_the_header(tmp_path, whole, length):
    path = tmp_path / "model.gguf"
    path.write_bytes(whole[:length])
    with pytest.raises(ModelFormatError, match=r"model\.gguf"):
        check(path)


def test_every_truncation(whole):
    last = 4 * gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q4_0][1]
    end = len(whole) - -last % 32  # what follows the last tensor is padding
    for length in range(0, end, 11):
        refused(whole[:length], "damaged")


def test_ten_thousand_mutations(whole):
    """Whatever a file says, the answer is a typed error or what it holds."""
    generator, refusals = random.Random(0), 0
    end = whole.index(b"extra") + 64
    for _ in range(10_000):
        content = bytearray(whole)
        for _ in range(generator.choice((1, 1, 2, 8))):
            at = generator.randrange(end)
            if generator.random() < 0.5:
                content[at] = generator.randrange(256)
            else:
                word = generator.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 31))
                content[at : at + 4] = struct.pack("<I", word)
        try:
            examine(content, "model.gguf")
        except ModelFormatError:
            refusals += 1
    assert refusals > 5_000


def test_memory_is_bounded_by_the_file(whole):
    tracemalloc.start()
    for at in range(0, whole.index(b"extra") + 64, 5):
        content = bytearray(whole)
        content[at : at + 8] = struct.pack("<Q", 1 << 33)
        with contextlib.suppress(ModelFormatError):
            examine(content, "model.gguf")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 20 * len(whole)
