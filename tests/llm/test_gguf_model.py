"""From a file to a module: weights are the mapped file's, and what does not fit is refused with a typed error."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_writing import Q, gguf, interleave, random_blocks

from vkinductor.llm.errors import (
    ModelError,
    ModelFormatError,
    ModelNotFoundError,
    UnknownOptionError,
    UnsupportedModelError,
)
from vkinductor.llm.generate import Generator
from vkinductor.llm.gguf_file import GGUFFile
from vkinductor.llm.gguf_model import decoder, halves, load_gguf

WIDTH, INNER, WORDS, LAYERS = 256, 256, 40, 2
KEYS = {
    "block_count": LAYERS,
    "context_length": 64,
    "embedding_length": WIDTH,
    "feed_forward_length": INNER,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


def write(
    path: Path,
    architecture: str = "llama",
    format: Q = Q.Q4_K,
    without: str = "",
    alignment: int = 32,
    shapes: dict[str, tuple[int, ...]] | None = None,
    **changes: object,
) -> Path:
    """A small llama with random weights; ``changes`` of its keys with _ for "." and None for leaving one out."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_custom_alignment(alignment)
    for key, value in (KEYS | {name.replace("__", "."): value for name, value in changes.items()}).items():
        if value is not None:
            add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            add.get(type(value), writer.add_array)(f"{architecture}.{key}", value)
    writer.add_array("tokenizer.ggml.tokens", [f"w{i}" for i in range(WORDS)])
    layer = {
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (WIDTH // 2, WIDTH),
        "attn_v": (WIDTH // 2, WIDTH),
        "attn_output": (WIDTH, WIDTH),
        "ffn_gate": (INNER, WIDTH),
        "ffn_up": (INNER, WIDTH),
        "ffn_down": (WIDTH, INNER),
        "attn_norm": (WIDTH,),
        "ffn_norm": (WIDTH,),
    }
    every = {"token_embd": (WORDS, WIDTH), "output_norm": (WIDTH,)}
    every |= {f"blk.{i}.{name}": shape for i in range(LAYERS) for name, shape in layer.items()}
    for seed, (name, shape) in enumerate((every | (shapes or {})).items()):
        if name == without:
            continue
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
        elif format == Q.F32:
            writer.add_tensor(f"{name}.weight", np.random.default_rng(seed).random(shape, np.float32))
        else:
            data = random_blocks(format, *shape, seed=seed)
            writer.add_tensor(f"{name}.weight", data, raw_dtype=format)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_packed_weights_on_the_cpu_are_the_mapped_file(tmp_path):
    path = write(tmp_path / "model.gguf")
    file = GGUFFile(path)
    model = decoder(file, torch.device("cpu"), torch.float32)
    there = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path, "c").tensors}
    start = file._bytes.ctypes.data
    for module, name in (
        (model.embedding, "token_embd.weight"),
        (model.layers[1].feed_forward.down, "blk.1.ffn_down.weight"),
        (model.layers[0].attention.v, "blk.0.attn_v.weight"),
    ):
        assert module.packed.data_ptr() == start + file.entry(name).start
        assert np.array_equal(module.packed.numpy(), there[name])
    assert model.head is None
    assert not model.training
    assert model.dtype == torch.float32
    assert not any(parameter.requires_grad for parameter in model.parameters())
    # The order of q's rows changes, nothing else does.
    rows = model.layers[0].attention.q.packed
    assert np.array_equal(rows[halves(4, 64, 64).argsort()].numpy(), there["blk.0.attn_q.weight"])


def test_halves_undo_the_order_of_converters():
    rows = np.arange(3 * 8).reshape(24, 1)
    assert torch.equal(torch.from_numpy(interleave(rows, 3))[halves(3, 8, 8)], torch.from_numpy(rows))
    # What does not turn stays where it is.
    assert halves(1, 8, 4).tolist() == [0, 2, 1, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("alignment", [1, 32])
def test_floats_of_any_alignment(tmp_path, alignment):
    path = write(tmp_path / "model.gguf", format=Q.F32, alignment=alignment, general__note="x")
    model = load_gguf(path, "cpu", torch.bfloat16)
    assert model.embedding.weight.dtype == torch.bfloat16
    with torch.no_grad():
        assert model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, WORDS)


def test_int8_activations_go_to_the_backend(tmp_path):
    """What a model was loaded with, unless the driver is told otherwise; nothing without a backend."""
    path, seen = write(tmp_path / "model.gguf", format=Q.Q6_K), []

    def backend(graph, inputs, options=None):
        seen.append(options)
        return graph

    model = load_gguf(path, "cpu", torch.float32, int8_activations=True)
    Generator(model, 20, backend).generate(torch.tensor([[3]]), 1)
    assert seen == [{"int8_activations": True}]
    Generator(model, 20, backend, compile_options={}).generate(torch.tensor([[3]]), 1)
    assert seen[1:] == [None]
    assert load_gguf(path, "cpu").compile_options == {}
    with pytest.raises(UnknownOptionError, match="int8_activations"):
        Generator(model, 20, None, compile_options={"int8_activations": True})


def test_on_the_device(tmp_path, device):
    """Packed rows on the device give the CPU's tokens through the compiled loop, and nothing falls back."""
    torch._dynamo.reset()
    path = write(tmp_path / "model.gguf", format=Q.Q6_K)
    expected = Generator(load_gguf(path, "cpu", torch.float32), 20, backend=None).generate(torch.tensor([[3, 5, 7]]), 6)
    model = load_gguf(path, dtype=torch.float32)
    assert {x.device.type for x in (*model.parameters(), *model.buffers())} == {"vulkan"}
    result = Generator(model, 20).generate(torch.tensor([[3, 5, 7]]), 6)
    assert result.tokens == expected.tokens
    assert result.fallbacks == {}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"without": "blk.1.attn_v"}, ModelFormatError, "no tensor 'blk.1.attn_v.weight'"),
        ({"shapes": {"blk.0.attn_k": (WIDTH, WIDTH)}}, ModelFormatError, "has shape .256, 256., the model needs .128"),
        ({"attention__head_count": 6}, ModelFormatError, "cannot be|shape"),
        ({"attention__head_count_kv": 3}, ModelFormatError, "cannot be"),
        ({"attention__layer_norm_rms_epsilon": None}, ModelFormatError, "no llama.attention.layer_norm_rms_epsilon"),
        ({"attention__layer_norm_rms_epsilon": float("nan")}, ModelFormatError, "nan"),
        ({"rope__freq_base": -1.0}, ModelFormatError, "-1.0"),
        ({"rope__dimension_count": 128}, ModelFormatError, "cannot turn"),
        ({"rope__scaling__type": "spiral"}, UnsupportedModelError, "spiral"),
        ({"expert_count": 8}, UnsupportedModelError, "mixture of experts"),
        ({"attention__head_count_kv": [1, 2]}, UnsupportedModelError, "differs between layers"),
        ({"attention__value_length": 32}, UnsupportedModelError, "different widths"),
        ({"architecture": "mamba"}, UnsupportedModelError, "'mamba'; weights stay packed for gemma"),
    ],
)
def test_files_that_do_not_fit(tmp_path, change, error, words):
    with pytest.raises(error, match=words):
        load_gguf(write(tmp_path / "model.gguf", **change), "cpu")


def test_a_format_that_is_not_in_the_table(tmp_path):
    path = write(tmp_path / "model.gguf")
    content = bytearray(path.read_bytes())
    name = b"blk.0.ffn_up.weight"
    at = content.index(name) + len(name) + 4 + 2 * 8
    content[at : at + 4] = struct.pack("<I", int(Q.IQ2_XXS))
    path.write_bytes(content)
    with pytest.raises(UnsupportedModelError, match="IQ2_XXS"):
        load_gguf(path, "cpu")


def test_rows_that_are_no_whole_blocks(tmp_path):
    path = write(tmp_path / "model.gguf")
    content = bytearray(path.read_bytes())
    name = b"blk.0.ffn_up.weight"
    at = content.index(name) + len(name) + 4
    content[at : at + 8] = struct.pack("<Q", 128)  # columns of a K-quant, whose blocks are 256
    path.write_bytes(content)
    with pytest.raises(ModelFormatError, match="no whole blocks of 256"):
        load_gguf(path, "cpu")


def test_missing_file(tmp_path):
    with pytest.raises(ModelNotFoundError):
        load_gguf(tmp_path / "none.gguf")


def test_mutated_headers_give_typed_errors_or_models(tmp_path):
    """What the walk lets through either makes a decoder or is refused by it."""
    whole = write(tmp_path / "model.gguf").read_bytes()
    end = whole.index(b"blk.1.ffn_norm.weight") + 64
    generator, refused = np.random.default_rng(0), 0
    path = tmp_path / "mutated.gguf"
    for _ in range(300):
        content = bytearray(whole)
        at = int(generator.integers(end))
        content[at : at + 4] = struct.pack("<I", int(generator.choice([0, 1, 2, 3, 255, 1 << 31])))
        path.write_bytes(content)
        try:
            load_gguf(path, "cpu")
        except ModelError:
            refused += 1
    assert refused > 100


def test_values_of_another_type_are_refused(tmp_path):
    file = GGUFFile(write(tmp_path / "model.gguf"))
    assert file.value("nothing", int, 7) == 7
    with pytest.raises(ModelFormatError, match=r"general\.architecture is 'llama'"):
        file.value("general.architecture", int)
