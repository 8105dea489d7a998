"""Whole encoder layers and whole attention, which torch.nn calls in evaluation, in parts that have kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

aten = torch.ops.aten

# Numbers of a mask's type: [T, T], [B, T], or all of [B, heads, T, T].
_OF_PAIRS, _OF_KEYS = 0, 1


def _projections(query: Any, key: Any, value: Any, weight: Any, bias: Any) -> tuple[Any, ...]:
    """[B, T, D] each: one product where all come from one tensor."""
    if query is key and key is value:
        return tuple(F.linear(query, weight, bias).chunk(3, -1))
    parts = zip((query, key, value), weight.chunk(3), bias.chunk(3), strict=True)
    return tuple(F.linear(x, w, b) for x, w, b in parts)


def _weights(scores: Any, mask: Any, mask_type: int | None) -> Any:
    """The softmax of ``scores`` [B, heads, T, S]; a mask is true (or not zero) where nothing is seen, and rows that see
    nothing are zero."""
    if mask is None:
        return torch.softmax(scores, -1)
    mask = mask.to(torch.bool)
    if mask_type == _OF_KEYS:
        mask = mask[:, None, None, :]
    elif mask_type == _OF_PAIRS:
        mask = mask[None, None]
    return torch.where(mask, 0, torch.softmax(torch.where(mask, float("-inf"), scores), -1))


def _attention(
    query: Any, key: Any, value: Any, embed_dim: Any, heads: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any,
    proj_bias: Any, mask: Any = None, need_weights: bool = True, average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:  # fmt: skip
    """([B, T, D], the weights or nothing)."""
    q, k, v = (
        x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in _projections(query, key, value, qkv_weight, qkv_bias)
    )
    scores = torch.matmul(q * (1 / math.sqrt(embed_dim // heads)), k.transpose(-2, -1))
    weights = _weights(scores, mask, mask_type)
    made = F.linear(torch.matmul(weights, v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return made, query.new_empty(0)
    return made, weights.mean(1) if average_attn_weights else weights


def _encoder_layer(
    x: Any, embed_dim: Any, heads: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any, proj_bias: Any,
    use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Any, norm_bias_1: Any, norm_weight_2: Any,
    norm_bias_2: Any, ffn_weight_1: Any, ffn_bias_1: Any, ffn_weight_2: Any, ffn_bias_2: Any, mask: Any = None,
    mask_type: int | None = None,
) -> Any:  # fmt: skip
    def attend(x: Any) -> Any:
        parts = (qkv_weight, qkv_bias, proj_weight, proj_bias, mask)
        return _attention(x, x, x, embed_dim, heads, *parts, need_weights=False, mask_type=mask_type)[0]

    def feed(x: Any) -> Any:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    def norm_1(x: Any) -> Any:
        return F.layer_norm(x, [embed_dim], norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Any) -> Any:
        return F.layer_norm(x, [embed_dim], norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = x + attend(norm_1(x))
        return x + feed(norm_2(x))
    x = norm_1(x + attend(x))
    return norm_2(x + feed(x))


TABLE: dict[Any, Callable[..., Any]] = {
    aten._native_multi_head_attention.default: _attention,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}
