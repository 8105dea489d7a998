"""One decoder for all architectures of the table: plain PyTorch over weights that may be packed.

Owns the model's arithmetic; architectures.py says how models differ, rotary.py has the positions, quantized.py the
packed layers, and who makes a decoder gives it the weights under GGUF's names (`Weights`).

The protocol with the decode loop is that of a `transformers` causal language model, as much of it as a loop needs:

* ``config``: a `DecoderConfig`, from which a cache takes its shape and the kinds of layers;
* ``generation_config.eos_token_id``: the tokens that end a text;
* ``forward(input_ids, attention_mask, position_ids, cache, use_cache, logits_to_keep)`` with ``.logits`` and ``.cache``
  in what it returns. ``cache`` has ``update(keys, values, layer)``, which returns the keys and values to attend to, and
  ``get_seq_length()``: the slot that the first of the new tokens is written to, an int or an int64 tensor of shape
  (1,). Cached keys are rotated. Without a cache, ``use_cache=True`` starts one that grows.
* ``attention_mask``: bool, (batch or 1, 1, tokens, keys), true where a key is seen, and narrowed here for layers with a
  window; or a dict of one mask for each kind of layer in ``config.layer_types``, taken as it is; or None: each token
  sees what came before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional as F

from vkinductor.llm.architectures import FULL, SLIDING, DecoderConfig
from vkinductor.llm.errors import ModelError
from vkinductor.llm.quantized import Embedding, QuantizedEmbedding
from vkinductor.llm.rotary import Rotary, Rotation, rotate

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}

# The tensor that rotary frequencies are divided by, where it is not the usual one.
FACTORS = {"longrope": "rope_factors_short"}

Masks = dict[str, torch.Tensor]


class Weights(Protocol):
    """Where a decoder's parts come from. Names are GGUF's, without ".weight"."""

    def __contains__(self, name: str) -> bool:
        """Whether there is a tensor of that name (with its ending)."""
        ...

    def linear(self, name: str, rows: int, columns: int, heads: int = 0) -> nn.Module:
        """A linear layer with its bias, if it has one. `heads`: rows are that many heads, to be rotated by halves."""
        ...

    def embedding(self, name: str, rows: int, columns: int) -> Embedding | QuantizedEmbedding:
        """An embedding, packed or not."""
        ...

    def vector(self, name: str, length: int) -> torch.Tensor:
        """A vector of floats in the dtype of activations; the name with its ending."""
        ...

    def exact(self, name: str, length: int) -> torch.Tensor:
        """A vector in float32 on the CPU; the name with its ending."""
        ...


@dataclass
class DecoderOutput:
    """`logits`: (batch, tokens that were kept, vocabulary). `cache`: the one that was used, or None."""

    logits: torch.Tensor
    cache: Any = None

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


@dataclass(frozen=True)
class GenerationConfig:
    """Tokens that begin, pad and end a text, under the names and in the types of `transformers`."""

    bos_token_id: int | None = None
    pad_token_id: int | None = None
    eos_token_id: list[int] = field(default_factory=list)


class GrowingCache:
    """Keys and values that grow by concatenation: for eager use, in which nothing has to keep its shape."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Append (batch, heads, tokens, width) and return all."""
        if layer in self._layers:
            earlier = self._layers[layer]
            keys, values = torch.cat((earlier[0], keys), 2), torch.cat((earlier[1], values), 2)
        self._layers[layer] = keys, values
        return keys, values

    def get_seq_length(self) -> int:
        """Tokens that the cache holds, which is also where the next one goes."""
        return self._layers[0][0].shape[2] if self._layers else 0


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, in float32. `wide`: the weight multiplies before the rounding."""

    def __init__(self, weight: torch.Tensor, epsilon: float, wide: bool):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.epsilon = epsilon
        self.wide = wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        exact = x.float()
        exact = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.epsilon)
        if self.wide:
            return (exact * self.weight.float()).to(x.dtype)
        return self.weight * exact.to(x.dtype)


class LayerNorm(nn.Module):
    """Layer norm over the last dimension."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, epsilon: float):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


def norm(config: DecoderConfig, weights: Weights, name: str, length: int | None = None) -> nn.Module:
    """The norm `name` of the architecture's kind, over `length` elements (None: the model's width)."""
    length = config.hidden_size if length is None else length
    scale = weights.vector(f"{name}.weight", length)
    if config.architecture.layer_norm:
        return LayerNorm(scale, weights.vector(f"{name}.bias", length), config.norm_eps)
    return RMSNorm(scale, config.norm_eps, config.architecture.wide_norms)


def optional_norm(config: DecoderConfig, weights: Weights, name: str, length: int | None = None) -> nn.Module | None:
    """`norm` where the file has it."""
    return norm(config, weights, name, length) if f"{name}.weight" in weights else None


class Attention(nn.Module):
    """Attention over a cache, with grouped queries, norms of heads and a soft cap where the model has them."""

    def __init__(self, config: DecoderConfig, weights: Weights, layer: int):
        super().__init__()
        self.layer = layer
        self.heads, self.groups, self.width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.scale, self.cap = config.scale, config.attn_logit_softcapping
        name, size = f"blk.{layer}.attn_", config.hidden_size
        rows = self.heads * self.width, self.groups * self.width, self.groups * self.width
        if f"{name}qkv.weight" in weights:
            self.qkv = weights.linear(f"{name}qkv", sum(rows), size)
        else:
            self.q = weights.linear(f"{name}q", rows[0], size, self.heads)
            self.k = weights.linear(f"{name}k", rows[1], size, self.groups)
            self.v = weights.linear(f"{name}v", rows[2], size)
        self.sections = rows
        self.output = weights.linear(f"{name}output", size, rows[0])
        self.q_norm = optional_norm(config, weights, f"{name}q_norm", self.width)
        self.k_norm = optional_norm(config, weights, f"{name}k_norm", self.width)
        self.fused = hasattr(self, "qkv")

    def forward(self, x: torch.Tensor, rotation: Rotation | None, mask: torch.Tensor | None, cache: Any) -> Any:
        batch, length, _ = x.shape
        parts = self.qkv(x).split(self.sections, -1) if self.fused else (self.q(x), self.k(x), self.v(x))
        q, k, v = (part.view(batch, length, -1, self.width).transpose(1, 2) for part in parts)
        if self.q_norm is not None:
            q = self.q_norm(q)
        if self.k_norm is not None:
            k = self.k_norm(k)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        if cache is not None:
            k, v = cache.update(k, v, self.layer)
        attended = self._attend(q, k, v, mask)
        return self.output(attended.transpose(1, 2).reshape(batch, length, -1))

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        if self.cap is None:
            return F.scaled_dot_product_attention(q, k, v, mask, scale=self.scale, enable_gqa=self.heads != self.groups)
        # The cap goes between scale and mask, where torch's operator has no place for it. The heads that share keys are
        # rows of one product, which repeats no keys.
        batch, _, length, width = q.shape
        rows = q.reshape(batch, self.groups, -1, width)
        scores = torch.matmul(rows, k.transpose(2, 3)) * self.scale
        scores = torch.tanh(scores / self.cap) * self.cap
        scores = scores.view(batch, self.groups, -1, length, k.shape[2])
        if mask is not None:
            scores = scores.masked_fill(~mask[:, :, None], float("-inf"))
        shares = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
        out = torch.matmul(shares.view(batch, self.groups, -1, k.shape[2]), v)
        return out.view(batch, self.heads, length, width)


class FeedForward(nn.Module):
    """The network after attention: gated (two projections, or one that holds both) or plain."""

    def __init__(self, config: DecoderConfig, weights: Weights, layer: int):
        super().__init__()
        name, size, inner = f"blk.{layer}.ffn_", config.hidden_size, config.intermediate_size
        gated = config.architecture.gated
        self.activation = ACTIVATIONS[config.architecture.activation]
        self.gate = weights.linear(f"{name}gate", inner, size) if f"{name}gate.weight" in weights else None
        # A gated network without a gate of its own has both in one, the gate first.
        self.fused = gated and self.gate is None
        self.up = weights.linear(f"{name}up", 2 * inner if self.fused else inner, size)
        self.down = weights.linear(f"{name}down", size, inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up = self.up(x)
        if self.fused:
            gate, up = up.chunk(2, -1)
            return self.down(self.activation(gate) * up)
        if self.gate is not None:
            return self.down(self.activation(self.gate(x)) * up)
        return self.down(self.activation(up))


class Layer(nn.Module):
    """Attention and feed-forward network, each between norms and added to what came in."""

    def __init__(self, config: DecoderConfig, weights: Weights, layer: int):
        super().__init__()
        name = f"blk.{layer}."
        self.attention_norm = norm(config, weights, f"{name}attn_norm")
        self.attention = Attention(config, weights, layer)
        self.post_attention_norm = optional_norm(config, weights, f"{name}post_attention_norm")
        self.feed_forward_norm = norm(config, weights, f"{name}ffn_norm")
        self.feed_forward = FeedForward(config, weights, layer)
        self.post_feed_forward_norm = optional_norm(config, weights, f"{name}post_ffw_norm")

    def forward(self, x: torch.Tensor, rotation: Rotation | None, mask: torch.Tensor | None, cache: Any) -> Any:
        attended = self.attention(self.attention_norm(x), rotation, mask, cache)
        if self.post_attention_norm is not None:
            attended = self.post_attention_norm(attended)
        x = x + attended
        fed = self.feed_forward(self.feed_forward_norm(x))
        if self.post_feed_forward_norm is not None:
            fed = self.post_feed_forward_norm(fed)
        return x + fed


class Decoder(nn.Module):
    """The whole model, from tokens to logits: see the module's docstring for its protocol.

    Raises what `weights` raises for tensors that are missing or of another shape.
    """

    def __init__(self, config: DecoderConfig, weights: Weights, generation: GenerationConfig | None = None):
        super().__init__()
        self.config = config
        self.generation_config = generation or GenerationConfig()
        # Of torch.compile's backend, where the driver compiles this model and is not told otherwise.
        self.compile_options: dict[str, Any] = {}
        size, words = config.hidden_size, config.vocab_size
        self.embedding = weights.embedding("token_embd", words, size)
        learned = not config.architecture.rotary
        self.positions = weights.embedding("position_embd", config.max_position_embeddings, size) if learned else None
        self.rotary = nn.ModuleDict()
        for kind, rope in config.ropes.items():
            pairs = rope.width // 2
            near, far = (
                weights.exact(f"{name}.weight", pairs) if f"{name}.weight" in weights else None
                for name in (
                    FACTORS.get(rope.scaling, "rope_freqs"),
                    "rope_factors_long",
                )
            )
            self.rotary[kind] = Rotary(rope, near, far)
        self.layers = nn.ModuleList(Layer(config, weights, layer) for layer in range(config.num_hidden_layers))
        self.norm = norm(config, weights, "output_norm")
        # Without a matrix of its own the head is the embedding's.
        self.head = weights.linear("output", words, size) if "output.weight" in weights else None
        self.rotary.to(self.device)
        self.eval()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations; packed weights have none."""
        return next(self.parameters()).dtype

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | Masks | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Any = None,
        use_cache: bool = False,
        logits_to_keep: int = 0,
    ) -> DecoderOutput:
        """Logits of the last `logits_to_keep` tokens (0: of all) of `input_ids`, int64 (batch, tokens).

        `position_ids`: int64, (batch or 1, tokens), or None: those of the cache's slots. Raises ModelError for a mask
        of another form than the protocol's.
        """
        if cache is None and use_cache:
            cache = GrowingCache()
        length = input_ids.shape[1]
        start = 0 if cache is None else cache.get_seq_length()
        slots = start + torch.arange(length, device=input_ids.device)
        positions = slots[None] if position_ids is None else position_ids
        masks = self._masks(attention_mask, slots, cache, length)
        dtype = self.norm.weight.dtype
        x = self.embedding(input_ids, dtype)
        if self.config.embedding_scale != 1:
            x = x * self.config.embedding_scale
        if self.positions is not None:
            x = x + self.positions(positions, dtype)
        rotations = {kind: rotary(positions, dtype) for kind, rotary in self.rotary.items()}
        for layer, kind in zip(self.layers, self.config.layer_types, strict=True):
            x = layer(x, rotations.get(kind), masks[kind], cache)
        if logits_to_keep:
            x = x[:, -logits_to_keep:]
        x = self.norm(x)
        logits = self.embedding.project(x) if self.head is None else self.head(x)
        cap = self.config.final_logit_softcapping
        return DecoderOutput(logits if cap is None else torch.tanh(logits / cap) * cap, cache)

    def _masks(self, given: torch.Tensor | Masks | None, slots: torch.Tensor, cache: Any, length: int) -> Masks:
        """A mask for each kind of layer; `slots`: where the new tokens lie in the cache, (tokens,)."""
        if isinstance(given, dict):
            return given
        if given is not None and (given.dim() != 4 or given.dtype != torch.bool):
            raise ModelError(
                f"attention_mask is {given.dtype} of shape {tuple(given.shape)}: give booleans of four dimensions, "
                "or a dict of those by kind of layer"
            )
        if given is None:
            # A cache of fixed size says so; what it holds beyond the new tokens is not yet written.
            keys = length if cache is None else getattr(cache, "length", None) or cache.get_seq_length() + length
        else:
            keys = given.shape[-1]
        places = torch.arange(keys, device=slots.device)
        seen = given if given is not None else (places[None, :] <= slots[:, None])[None, None]
        masks = {FULL: seen}
        if self.config.sliding_window is not None:
            masks[SLIDING] = seen & (places[None, :] > slots[:, None] - self.config.sliding_window)
        return masks
