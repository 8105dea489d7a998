"""What GGUF's architectures are in terms of one decoder: a table of differences, and hyperparameters from a file.

Owns the names of GGUF's keys and what a silent file means. The decoder that these describe is decoder.py's.
Keys: ggml's docs/gguf.md and the `gguf` package's constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from vkinductor.llm.errors import ModelFormatError, UnknownOptionError, UnsupportedModelError
from vkinductor.llm.gguf_file import GGUFFile

# Kinds of layers, named as in the configurations of `transformers`.
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Architecture:
    """How models of a name differ from a llama. What a file can say itself (fused projections, biases, norms of heads,
    norms after a block, a head of its own) is not here: it is where its tensors are."""

    activation: str = "silu"
    """Of the feed-forward network: a name in decoder.ACTIVATIONS."""
    gated: bool = True
    """Whether the activation of one projection multiplies another; otherwise there is one."""
    layer_norm: bool = False
    """Layer norms with biases instead of RMS norms."""
    wide_norms: bool = False
    """Norms multiply by their weight in float32, before they round; otherwise after."""
    rotary: bool = True
    """Rotary positions; otherwise a learned embedding of each position."""
    interleaved: bool = False
    """The file's rows of q and k are ordered for the rotation of neighbours (ggml's NORM type)."""
    scaled_embedding: bool = False
    """Embeddings are multiplied by the square root of their width."""
    full_every: int = 0
    """Each so many-th layer sees everything, the others a window; 0: all are alike."""
    window: int = 0
    """The window where the file names none; 0: none."""
    local_base: float = 0
    """Base of the rotary frequencies in layers with a window; 0: the same as elsewhere."""
    attention_cap: float = 0
    logit_cap: float = 0
    """Soft caps where the file names none; 0: none."""
    wide_scale_layers: int = 0
    """Models of so many layers scale q by the embedding's width a head instead of the head's width."""
    halves: bool = True
    """Whether hidden states stay below 65504, the largest half."""


# Differences as in the models' papers and `transformers` configurations; for what files leave out, as in llama.cpp.
ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(interleaved=True),
    "qwen2": Architecture(),
    "qwen3": Architecture(),
    "phi3": Architecture(),
    "gemma": Architecture(activation="gelu_tanh", wide_norms=True, scaled_embedding=True),
    "gemma2": Architecture(
        activation="gelu_tanh",
        wide_norms=True,
        scaled_embedding=True,
        full_every=2,
        window=4096,
        attention_cap=50,
        logit_cap=30,
        wide_scale_layers=46,  # 27B
    ),
    "gemma3": Architecture(
        activation="gelu_tanh",
        wide_norms=True,
        scaled_embedding=True,
        full_every=6,
        local_base=10_000,
        wide_scale_layers=62,  # 27B
        halves=False,  # 104,000 in the 14th layer of 270M, on a question of 12 tokens
    ),
    "gpt2": Architecture(activation="gelu_tanh", gated=False, layer_norm=True, rotary=False),
}


@dataclass(frozen=True)
class Rope:
    """Rotary positions of one kind of layer.

    `width`: how many elements of a head turn. `scaling`: none, linear, yarn or longrope; `factor`, `original` (tokens)
    and the betas are its parameters. `amplitude` multiplies cosine and sine.
    """

    base: float
    width: int
    scaling: str = "none"
    factor: float = 1.0
    original: int = 0
    amplitude: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and constants of one model. Names that `transformers` has too are its names, so that caches and loops made
    for its models read this one."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    layer_types: tuple[str, ...]
    sliding_window: int | None
    norm_eps: float
    scale: float
    """Factor of the scores of attention."""
    embedding_scale: float
    attn_logit_softcapping: float | None
    final_logit_softcapping: float | None
    ropes: dict[str, Rope] = field(default_factory=dict)
    """By kind of layer; empty without rotary positions."""

    @property
    def architecture(self) -> Architecture:
        """The row of the table."""
        return ARCHITECTURES[self.model_type]

    def get_text_config(self, decoder: bool = True) -> DecoderConfig:
        """The configuration itself: `transformers` asks models of several parts so."""
        return self


def default_dtype(architecture: str) -> torch.dtype:
    """Of activations: float16, or bfloat16 where they outgrow that. `architecture`: GGUF's name or a ``model_type``."""
    row = ARCHITECTURES.get(architecture.removesuffix("_text"))
    return torch.float16 if row is None or row.halves else torch.bfloat16


def check_dtype(architecture: str, dtype: torch.dtype) -> None:
    """Raises UnknownOptionError for activations in float16 that `default_dtype` says are too large for it."""
    if dtype == torch.float16 != default_dtype(architecture):
        raise UnknownOptionError(
            f"hidden states of {architecture} go over 65504, the largest number in float16, so that its tokens would "
            "mean nothing: choose bfloat16 or float32"
        )


def is_supported(architecture: str) -> bool:
    """Whether there is a row for GGUF's name of an architecture."""
    return architecture in ARCHITECTURES


def configure(file: GGUFFile) -> DecoderConfig:
    """The configuration that `file` describes.

    Raises UnsupportedModelError for an architecture that is not in the table or a variation that no row has (experts,
    heads that differ between layers, an unknown scaling of positions), ModelFormatError for values that cannot be.
    """
    name = file.architecture
    if name not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file.path} is of architecture {name!r}; weights stay packed for {', '.join(sorted(ARCHITECTURES))}"
        )
    row = ARCHITECTURES[name]
    if _number(file, "expert_count", 0):
        raise UnsupportedModelError(f"{file.path} is a mixture of experts, which the decoder does not do")
    layers, width = _count(file, "block_count"), _count(file, "embedding_length")
    heads = _count(file, "attention.head_count")
    groups = _count(file, "attention.head_count_kv", heads)
    head = _count(file, "attention.key_length", width // heads)
    if heads % groups or head % 2 or not head:
        raise ModelFormatError(f"{file.path}: {heads} heads of {head} with {groups} of keys cannot be")
    if _count(file, "attention.value_length", head) != head:
        raise UnsupportedModelError(f"{file.path}: keys and values of different widths are not supported")
    window = _number(file, "attention.sliding_window", row.window)
    kinds = _layer_types(file, row, layers, window)
    epsilon = "attention.layer_norm_epsilon" if row.layer_norm else "attention.layer_norm_rms_epsilon"
    default_scale = (width / heads if layers == row.wide_scale_layers else head) ** -0.5
    return DecoderConfig(
        model_type=name,
        vocab_size=file.entry("token_embd.weight").shape[-1],
        hidden_size=width,
        intermediate_size=_count(file, "feed_forward_length"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=head,
        max_position_embeddings=_count(file, "context_length"),
        layer_types=kinds,
        sliding_window=window if SLIDING in kinds else None,
        norm_eps=_real(file, epsilon),
        scale=_real(file, "attention.scale", default_scale),
        embedding_scale=math.sqrt(width) if row.scaled_embedding else 1.0,
        attn_logit_softcapping=_real(file, "attn_logit_softcapping", row.attention_cap) or None,
        final_logit_softcapping=_real(file, "final_logit_softcapping", row.logit_cap) or None,
        ropes={kind: _rope(file, row, kind, head) for kind in sorted(set(kinds))} if row.rotary else {},
    )


def _layer_types(file: GGUFFile, row: Architecture, layers: int, window: int) -> tuple[str, ...]:
    if not window:
        return (FULL,) * layers
    pattern = file.hyperparameter("attention.sliding_window_pattern", (int, list), row.full_every)
    if isinstance(pattern, list):  # whether each layer has a window
        if len(pattern) != layers:
            raise ModelFormatError(f"{file.path}: {len(pattern)} kinds of layers for {layers}")
        return tuple(SLIDING if windowed else FULL for windowed in pattern)
    return tuple(FULL if pattern and layer % pattern == pattern - 1 else SLIDING for layer in range(layers))


def _rope(file: GGUFFile, row: Architecture, kind: str, head: int) -> Rope:
    width = _count(file, "rope.dimension_count", head)
    if width > head or width % 2:
        raise ModelFormatError(f"{file.path}: {width} elements of heads of {head} cannot turn")
    base = _real(file, "rope.freq_base", 10_000.0)
    if kind == SLIDING and row.local_base:  # windows are short: their positions are not stretched
        return Rope(_real(file, "rope.freq_base_swa", row.local_base), width)
    factor = _real(file, "rope.scaling.factor", 0.0) or _real(file, "rope.scale_linear", 1.0)
    stretched = "rope_factors_long.weight" in file
    scaling = file.value(f"{file.architecture}.rope.scaling.type", str) or ("linear" if factor != 1 else "none")
    scaling = "longrope" if stretched else scaling
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise UnsupportedModelError(f"{file.path}: positions scaled by {scaling!r} are not supported")
    context = _count(file, "context_length")
    original = _count(file, "rope.scaling.original_context_length", context)
    amplitude = _real(file, "rope.scaling.attn_factor", 0.0)
    if scaling == "longrope" and not amplitude and context > original > 1:
        amplitude = math.sqrt(1 + math.log(context / original) / math.log(original))  # https://arxiv.org/abs/2402.13753
    amplitude = amplitude or 1.0
    if scaling == "yarn":
        amplitude *= 1 + 0.1 * math.log(factor)  # YaRN, https://arxiv.org/abs/2309.00071, equation 22
    return Rope(
        base,
        width,
        scaling,
        factor,
        original,
        amplitude,
        _real(file, "rope.scaling.yarn_beta_fast", 32.0),
        _real(file, "rope.scaling.yarn_beta_slow", 1.0),
    )


def _number(file: GGUFFile, key: str, default: int | None = None) -> int:
    value: Any = file.hyperparameter(key, (int, list), default)
    if isinstance(value, list):
        # One number a layer: fine while all are the same.
        if len(set(value)) != 1 or not isinstance(value[0], int):
            raise UnsupportedModelError(f"{file.path}: {key} differs between layers, which the decoder does not do")
        value = value[0]
    if value < 0:
        raise ModelFormatError(f"{file.path}: {key} is {value}")
    return int(value)


def _count(file: GGUFFile, key: str, default: int | None = None) -> int:
    value = _number(file, key, default)
    if not value:
        raise ModelFormatError(f"{file.path}: {key} is 0")
    return value


def _real(file: GGUFFile, key: str, default: float | None = None) -> float:
    value = float(file.hyperparameter(key, (int, float), default))
    if not math.isfinite(value) or value < 0:
        raise ModelFormatError(f"{file.path}: {key} is {value}")
    return value
