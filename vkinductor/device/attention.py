"""Scaled dot product attention as one operator, where its kernels can do it; elsewhere torch's composition.

torch decides for each device how `scaled_dot_product_attention` runs. Here that is a kernel on the device's autograd key,
which eager calls, Dynamo's fake tensors and AOTAutograd's tracing all reach: it turns the call into ``vkinductor.attention``
with ``vkinductor.attention_backward`` as its gradient, or hands it on. The kernels are codegen's.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Iterator
from typing import Any

import torch

from vkinductor.device.registry import DEVICE_NAME
from vkinductor.runtime import context

aten = torch.ops.aten

MAX_HEAD = 256
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_forced: contextvars.ContextVar[bool | None] = contextvars.ContextVar("vkinductor_attention", default=None)

# q [B, H, L, D], k [B, G, S, D], v [B, G, S, E], H a multiple of G (grouped queries). mask: bool (true where a key is
# seen) or added to the scores, [B or 1, H or 1, L or 1, S or 1]. causal: query i sees keys up to i.
# Returns the output [B, H, L, E] and the logarithm of each row's sum of exponentials, float32 [B, H, L], which is
# infinite where a row sees nothing.
_SCHEMA = "(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float scale) -> (Tensor, Tensor)"
# The gradients of q, k and v.
_BACKWARD_SCHEMA = (
    "(Tensor gradient, Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor out, Tensor lse, bool causal, float scale) "
    "-> (Tensor, Tensor, Tensor)"
)


@contextlib.contextmanager
def whole(value: bool = True) -> Iterator[None]:
    """Keep attention whole inside (or composed), whatever is faster on the device."""
    token = _forced.set(value)
    try:
        yield
    finally:
        _forced.reset(token)


def _visible(mask: torch.Tensor | None, causal: bool, scores: torch.Tensor) -> torch.Tensor:
    """``scores`` [B, H, L, S] with mask and causality applied."""
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if causal:
        rows, columns = (torch.arange(n, device=scores.device) for n in scores.shape[-2:])
        scores = scores.masked_fill(columns > rows[:, None], -math.inf)
    return scores


def _repeated(x: torch.Tensor, heads: Any) -> torch.Tensor:
    """[B, G, S, D] as [B, H, S, D]."""
    batch, groups, length, width = x.shape
    if groups == heads:
        return x
    return x[:, :, None].expand(batch, groups, heads // groups, length, width).reshape(batch, heads, length, width)


def _summed(x: torch.Tensor, groups: Any) -> torch.Tensor:
    """[B, H, S, D] to [B, G, S, D]: the transpose of `_repeated`."""
    return x if x.shape[1] == groups else x.unflatten(1, (groups, -1)).sum(2)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def attention_composed(
    q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``vkinductor.attention`` in other operators: what it means, and how the CPU runs it."""
    heads = q.shape[1]
    scores = torch.matmul(_wide(q) * scale, _wide(_repeated(k, heads)).transpose(-2, -1))
    scores = _visible(mask, causal, scores)
    lse = torch.logsumexp(scores, -1)
    seen = lse != -math.inf
    lse = torch.where(seen, lse, math.inf)
    out = torch.matmul(torch.exp(scores - lse[..., None]), _wide(_repeated(v, heads)))
    return out.to(q.dtype).transpose(1, 2).contiguous().transpose(1, 2), lse.float()


def backward_composed(
    gradient: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, lse: Any, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``vkinductor.attention_backward`` in other operators."""
    heads, groups = q.shape[1], k.shape[1]
    wide_q, wide_g = _wide(q), _wide(gradient)
    keys, values = _wide(_repeated(k, heads)), _wide(_repeated(v, heads))
    scores = _visible(mask, causal, torch.matmul(wide_q * scale, keys.transpose(-2, -1)))
    p = torch.exp(scores - lse[..., None])
    delta = (wide_g * _wide(out)).sum(-1, keepdim=True)
    ds = p * (torch.matmul(wide_g, values.transpose(-2, -1)) - delta) * scale
    dq = torch.matmul(ds, keys)
    dk = _summed(torch.matmul(ds.transpose(-2, -1), wide_q), groups)
    dv = _summed(torch.matmul(p.transpose(-2, -1), wide_g), groups)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _shapes(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    batch, heads, length, _ = q.shape
    # As torch's fused kernels lay it out: heads side by side, so that the projection after it reads rows.
    out = q.new_empty((batch, length, heads, v.shape[-1])).transpose(1, 2)
    return out, q.new_empty((batch, heads, length), dtype=torch.float32)


def _gradient_shapes(gradient: Any, q: Any, k: Any, v: Any, *rest: Any) -> tuple[torch.Tensor, ...]:
    return tuple(_heads_inside(x) for x in (q, k, v))


def _heads_inside(x: torch.Tensor) -> torch.Tensor:
    batch, heads, length, width = x.shape
    return x.new_empty((batch, length, heads, width)).transpose(1, 2)


def _backward_on_cpu(*args: Any) -> tuple[torch.Tensor, ...]:
    return tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in backward_composed(*args))


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, mask, causal, scale = inputs
    ctx.save_for_backward(q, k, v, mask, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.numbers = causal, scale


def _differentiate(ctx: Any, gradient: Any, _: Any) -> tuple[Any, ...]:
    q, k, v, mask, out, lse = ctx.saved_tensors
    if gradient is None:
        return (None,) * 6
    return (*attention_backward(gradient, q, k, v, mask, out, lse, *ctx.numbers), None, None, None)


def _keep_again(ctx: Any, inputs: Any, output: Any) -> None:
    gradient, q, k, v, mask, _, _, causal, scale = inputs
    ctx.save_for_backward(gradient, q, k, v, mask)
    ctx.numbers = causal, scale


def _differentiate_again(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
    """Second derivatives, composed: the first once more, of operators that torch can differentiate."""
    *leaves, mask = ctx.saved_tensors
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in leaves]
        gradient, q, k, v = leaves
        out, lse = attention_composed(q, k, v, mask, *ctx.numbers)
        first = backward_composed(gradient, q, k, v, mask, out, lse, *ctx.numbers)
    wanted = [(f, g) for f, g in zip(first, gradients, strict=True) if g is not None]
    made = torch.autograd.grad([f for f, _ in wanted], leaves, [g for _, g in wanted], allow_unused=True)
    return (*made, None, None, None, None, None)


def _declare() -> torch.library.Library:
    library = torch.library.Library("vkinductor", "FRAGMENT")
    for name, schema, shapes, kernel, keep, formula in (
        ("attention", _SCHEMA, _shapes, attention_composed, _keep, _differentiate),
        ("attention_backward", _BACKWARD_SCHEMA, _gradient_shapes, _backward_on_cpu, _keep_again, _differentiate_again),
    ):
        library.define(name + schema)
        torch.library.register_fake(f"vkinductor::{name}", shapes, lib=library)
        torch.library.register_autograd(f"vkinductor::{name}", formula, setup_context=keep, lib=library)
        library.impl(name, kernel, "CPU")
    return library


_LIBRARY = _declare()

attention = torch.ops.vkinductor.attention.default
attention_backward = torch.ops.vkinductor.attention_backward.default


def is_faster() -> bool:
    """Whether the device runs attention faster whole than composed: a CPU driver loops over shared memory for lanes."""
    forced = _forced.get()
    return context.get().info.kind != "cpu" if forced is None else forced


def _differentiates_otherwise() -> bool:
    """Whether some transform other than autograd is on: the formulas here are for autograd alone."""
    return torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0


def _mask_fits(mask: torch.Tensor, sizes: tuple[Any, ...]) -> bool:
    needs_gradient = mask.requires_grad and torch.is_grad_enabled()
    return (
        mask.dim() <= 4
        and not needs_gradient
        and mask.dtype in (torch.bool, *DTYPES)
        and mask.device.type == DEVICE_NAME
        and all(m == 1 or m == s for m, s in zip(reversed(mask.shape), reversed(sizes), strict=False))
    )


def is_served(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, grouped: bool) -> bool:
    """Whether ``vkinductor.attention`` can do a call; torch composes others, and says what is wrong with them."""
    if dropout or (mask is not None and causal) or _differentiates_otherwise():
        return False
    tensors = (q, k, v)
    if not all(x.dim() in (3, 4) and x.dim() == q.dim() and x.dtype == q.dtype for x in tensors):
        return False
    if q.dtype not in DTYPES or not all(x.device.type == DEVICE_NAME for x in tensors):
        return False
    if any(n == 0 for x in tensors for n in x.shape):
        return False
    q, k, v = (_four(x) for x in tensors)
    batch, heads, length, width = q.shape
    if k.shape[0] != batch or v.shape[0] != batch or k.shape[2] != v.shape[2] or k.shape[3] != width:
        return False
    if width > MAX_HEAD or v.shape[3] > MAX_HEAD or k.shape[1] != v.shape[1]:
        return False
    if (heads % k.shape[1] != 0) if grouped else (heads != k.shape[1]):
        return False
    if mask is not None and not _mask_fits(
        mask, (batch, heads, length, k.shape[2]) if tensors[0].dim() == 4 else (batch, length, k.shape[2])
    ):
        return False
    return is_faster()


def _four(x: torch.Tensor) -> torch.Tensor:
    return x if x.dim() == 4 else x.unsqueeze(1)


def _four_mask(mask: torch.Tensor, rank: int) -> torch.Tensor:
    """A mask for operands of ``rank`` dimensions with four, of size 1 where it has none."""
    if rank == 3 and mask.dim() == 3:
        return mask.unsqueeze(1)
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    return mask


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The device's kernel of torch's operator."""
    if not is_served(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa):
        op = aten.scaled_dot_product_attention.default
        composition = torch._C.DispatchKeySet(torch._C.DispatchKey.Lazy)  # a key that has the composition
        composed: torch.Tensor = op.redispatch(
            composition, query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return composed
    rank = query.dim()
    mask = None if attn_mask is None else _four_mask(attn_mask, rank)
    factor = 1 / math.sqrt(int(query.shape[-1])) if scale is None else scale
    out: torch.Tensor = attention(_four(query), _four(key), _four(value), mask, is_causal, factor)[0]
    return out if rank == 4 else out.squeeze(1)


def register(library: torch.library.Library) -> None:
    """Add the kernel to torch's "aten" library."""
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        library.impl("scaled_dot_product_attention", scaled_dot_product_attention, key)
