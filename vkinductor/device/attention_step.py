"""The attention of a decode step as one operator: rotary, the new keys' way into the cache, attention over it.

Owns the schema, shapes and meaning (the CPU's kernel; eager calls on the device run it, too, as separate operators).
The device's kernel is codegen's; what in a graph becomes this operator is the pass `codegen/passes/attention.py`'s.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

# q [B, H, L, D], k [B, G, L, D], v [B, G, L, E]: the projections, H a multiple of G. key_cache [B, G, S, D] and
# value_cache [B, G, S, E], of the same dtype: the new keys and values go to position .. position + L - 1, and query i
# stands at position + i.
# position: int64, one element or B. cos, sin: [B or 1, L, R] of rotary over the first R elements of a head (R even);
# without them none. interleaved: pairs are (2i, 2i + 1), else (i, i + R/2).
# q_weight, k_weight [D]: RMSNorm of each head with eps before that, by weight_offset + weight (Gemma's offset is 1).
# What query i sees: keys up to its position (causal), of those the last `window` (0: all), none before start (int64,
# one element or B), and what mask [B or 1, H or 1, L or 1, S or 1] says: bool, or added to the scores.
# scores = softcap * tanh(scale * q.k / softcap) (softcap 0: scale * q.k) + slopes[h] * (key - position of the query).
# Returns [B, H, L, E], 0 where a query sees nothing. All in float32; keys are rounded once, to the cache's dtype.
_SCHEMA = (
    "attention_step(Tensor q, Tensor k, Tensor v, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor position, "
    "Tensor? cos, Tensor? sin, Tensor? q_weight, Tensor? k_weight, Tensor? mask, Tensor? start, Tensor? slopes, "
    "float scale, bool causal=True, int window=0, float softcap=0.0, float eps=0.0, float weight_offset=0.0, "
    "bool interleaved=False) -> Tensor"
)


def normalized(x: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float) -> torch.Tensor:
    """RMSNorm over the last dimension (Zhang and Sennrich, 2019), in x's dtype; x itself without a weight."""
    if weight is None:
        return x
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * (weight.to(x.dtype) + offset)


def rotated(x: torch.Tensor, cos: torch.Tensor | None, sin: torch.Tensor | None, interleaved: bool) -> torch.Tensor:
    """Rotary position embedding (Su et al., 2021) of x [B, H, L, D] by cos, sin [B or 1, L, R], in x's dtype."""
    if cos is None or sin is None:
        return x
    size = cos.shape[-1]
    part, rest = x[..., :size], x[..., size:]
    if interleaved:
        turned = torch.stack((-part[..., 1::2], part[..., ::2]), -1).flatten(-2)
    else:
        turned = torch.cat((-part[..., size // 2 :], part[..., : size // 2]), -1)
    part = part * cos[:, None].to(x.dtype) + turned * sin[:, None].to(x.dtype)
    return torch.cat((part, rest), -1)


def visible(
    mask: torch.Tensor | None, position: torch.Tensor, start: torch.Tensor | None, length: int, keys: int,
    causal: bool, window: int,
) -> torch.Tensor | None:  # fmt: skip
    """What is seen, bool, broadcastable to [B, H, L, S]; None: everything."""
    here = position.reshape(-1, 1, 1, 1) + torch.arange(length, device=position.device)[:, None]
    key = torch.arange(keys, device=position.device)
    rules = [mask] if mask is not None and mask.dtype == torch.bool else []
    if causal:
        rules.append(key <= here)
    if window:
        rules.append(key > here - window)
    if start is not None:
        rules.append(key >= start.reshape(-1, 1, 1, 1))
    return functools.reduce(torch.logical_and, rules) if rules else None


def attention_step_composed(
    q: Any, k: Any, v: Any, key_cache: Any, value_cache: Any, position: Any, cos: Any, sin: Any, q_weight: Any,
    k_weight: Any, mask: Any, start: Any, slopes: Any, scale: float, causal: bool = True, window: int = 0,
    softcap: float = 0.0, eps: float = 0.0, weight_offset: float = 0.0, interleaved: bool = False,
) -> torch.Tensor:  # fmt: skip
    """``vkinductor.attention_step`` in other operators: what it means, and how the CPU runs it (doubles in double)."""
    heads, length = q.shape[1:3]
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    queries = rotated(normalized(q.to(wide), q_weight, eps, weight_offset), cos, sin, interleaved)
    new = rotated(normalized(k.to(wide), k_weight, eps, weight_offset), cos, sin, interleaved).to(key_cache.dtype)
    steps = torch.arange(length, device=position.device)
    if position.numel() == 1:
        index = position.reshape(-1) + steps
        key_cache.index_copy_(2, index, new)
        value_cache.index_copy_(2, index, v.to(value_cache.dtype))
    else:
        index = (position[:, None] + steps)[:, None, :, None]
        key_cache.scatter_(2, index.expand_as(new), new)
        value_cache.scatter_(2, index.expand_as(v), v.to(value_cache.dtype))
    groups, keys = key_cache.shape[1:3]
    share = heads // groups
    scores = torch.matmul(queries.unflatten(1, (groups, share)), key_cache.to(wide).transpose(-2, -1)[:, :, None])
    scores = scores.flatten(1, 2) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if slopes is not None:
        distance = torch.arange(keys, device=q.device) - (position.reshape(-1, 1, 1, 1) + steps[:, None])
        scores = scores + slopes.to(wide)[:, None, None] * distance
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask
    seen = visible(mask, position, start, length, keys, causal, window)
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    # A row that sees nothing is 0, not NaN.
    most = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - torch.where(most == -math.inf, 0.0, most))
    total = weights.sum(-1, keepdim=True)
    weights = weights / torch.where(total == 0, 1.0, total)
    out = torch.matmul(weights.unflatten(1, (groups, share)), value_cache.to(wide)[:, :, None]).flatten(1, 2)
    return out.to(q.dtype).transpose(1, 2).contiguous().transpose(1, 2)


def _shape(q: Any, k: Any, v: Any, *rest: Any, **options: Any) -> torch.Tensor:
    batch, heads, length, _ = q.shape
    # Heads side by side, so that the projection after it reads rows.
    return q.new_empty((batch, length, heads, v.shape[-1])).transpose(1, 2)


def _declare() -> torch.library.Library:
    library = torch.library.Library("vkinductor", "FRAGMENT")
    library.define(_SCHEMA)
    torch.library.register_fake("vkinductor::attention_step", _shape, lib=library)
    for key in ("CPU", "PrivateUse1"):
        library.impl("attention_step", attention_step_composed, key)
    return library


_LIBRARY = _declare()

attention_step = torch.ops.vkinductor.attention_step.default
