"""Faster reading of GGUF files: the same content, read once, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vkinductor.llm.gguf import fast_reading

gguf = pytest.importorskip("gguf")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_array("tokenizer.ggml.tokens", [f"token {i}" for i in range(100)])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_float32("scale", 0.5)
    writer.add_tensor("weights", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def content(reader) -> tuple[dict[str, object], dict[str, list[float]]]:
    return (
        {name: field.contents() for name, field in reader.fields.items()},
        {tensor.name: tensor.data.tolist() for tensor in reader.tensors},
    )


def test_the_content_is_the_same_and_is_read_once(file):
    slow = gguf.GGUFReader
    expected = content(slow(file))
    with fast_reading():
        reader = gguf.GGUFReader(file)
        assert content(reader) == expected
        assert gguf.GGUFReader(file) is reader
        assert type(reader.tensors[0].data) is np.ndarray
        table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
        assert gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2) is table
    assert gguf.GGUFReader is slow


def test_a_failure_leaves_nothing_behind(tmp_path):
    slow = gguf.GGUFReader
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    with pytest.raises(Exception), fast_reading():  # noqa: B017, PT011
        gguf.GGUFReader(tmp_path / "bad.gguf")
    assert gguf.GGUFReader is slow


def test_a_gguf_that_has_changed_is_left_alone(file, monkeypatch):
    monkeypatch.delattr(gguf, "get_tensor_name_map")
    slow = gguf.GGUFReader
    with fast_reading():
        assert gguf.GGUFReader is slow
