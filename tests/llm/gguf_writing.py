"""Tiny random models of `transformers`, written as GGUF files in mixed block formats.

The model that comes back holds what the file dequantises to, so it is an independent reference: its own code, the
`gguf` package's arithmetic, and the file's conventions (order of rows, offsets of norms) undone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from vkinductor.device.quantized import FORMATS

Q = gguf.GGMLQuantizationType

# Where a block's half-precision scales lie: everything else in it may be any bits.
SCALES = {
    Q.Q2_K: (80, 82),
    Q.Q3_K: (108,),
    Q.Q4_K: (0, 2),
    Q.Q5_K: (0, 2),
    Q.Q6_K: (208,),
    Q.IQ4_NL: (0,),
    Q.IQ4_XS: (0,),
}


def random_blocks(format: int, rows: int, columns: int, seed: int = 0, scale: float = 0.002) -> np.ndarray:
    """uint8 (rows, bytes): random bits with small scales."""
    entry = FORMATS[format]
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (rows, columns // entry.elements, entry.nbytes), np.uint8)
    for at in SCALES[Q(format)]:
        halves = (generator.random(blocks.shape[:2]) * scale).astype(np.float16)
        blocks[..., at : at + 2] = halves[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as converters of llamas write them: neighbours are a pair of the rotation."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def uninterleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of `interleave`."""
    return weight.reshape(heads, -1, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write(path: Path, architecture: str, model: Any, values: dict[str, Any], formats: list[Q], extra: Any = ()) -> None:
    """Write `model` as the GGUF file `path` and give it what the file dequantises to.

    `values`: keys of the architecture. `formats`: of the matrices, in turns. `extra`: tensors that only the file has.
    """
    config = model.config
    names = gguf.get_tensor_name_map(
        next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), config.num_hidden_layers
    )
    writer = gguf.GGUFWriter(str(path), architecture)
    defaults = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
    }
    for key, value in (defaults | values).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(f"{architecture}.{key}", value)
    writer.add_array("tokenizer.ggml.tokens", [f"w{i}" for i in range(config.vocab_size)])
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    writer.add_uint32("tokenizer.ggml.eot_token_id", 7)
    state, turn = model.state_dict(), 0
    for name, tensor in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name.endswith((".masked_bias", ".attn.bias")):
            continue
        base, _, ending = name.rpartition(".")
        there = names.get_name(base)
        assert there is not None, name
        weight, undo = convert(architecture, config, name, tensor.float().numpy())
        kind = Q.F32
        if weight.ndim == 2 and "position" not in there:
            kind = formats[turn % len(formats)]
            turn += 1
        packed = kind in SCALES
        data = random_blocks(kind, *weight.shape, seed=turn) if packed else gguf.quants.quantize(weight, kind)
        writer.add_tensor(f"{there}.{ending}", data, raw_dtype=kind)
        tensor.copy_(torch.from_numpy(undo(gguf.quants.dequantize(data, kind)).copy()))
    for name, weight in dict(extra).items():
        writer.add_tensor(name, weight)
    model.load_state_dict(state)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def convert(architecture: str, config: Any, name: str, weight: np.ndarray) -> Any:
    """A weight as the file has it, and the way back."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": getattr(config, "num_key_value_heads", 0)}
    part = name.split(".")[-2]
    if architecture == "llama" and part in heads:
        return interleave(weight, heads[part]), lambda w: uninterleave(w, heads[part])
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return weight + np.float32(1), lambda w: w - np.float32(1)
    if architecture == "gpt2" and part in ("c_attn", "c_proj", "c_fc") and weight.ndim == 2:
        return np.ascontiguousarray(weight.T), lambda w: w.T
    return weight, lambda w: w
