"""The calls that the rows of operators.csv are checked with: functions and arguments, by namespace and operator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

aten = torch.ops.aten


@dataclass(frozen=True)
class Case:
    """One call. arguments: of the function, in a dtype. gradient: its floating-point arguments have one."""

    function: Callable[..., Any]
    arguments: Callable[[torch.dtype], tuple[Any, ...]]
    gradient: bool = True
    reproducible: bool = True


def tensor(*shape: int, low: float = -2.0, high: float = 2.0) -> Callable[[torch.dtype], torch.Tensor]:
    """A maker of evenly spread, shuffled values of a shape."""

    def make(dtype: torch.dtype) -> torch.Tensor:
        generator = torch.Generator().manual_seed(sum(shape) + len(shape))
        return torch.empty(shape).uniform_(low, high, generator=generator).to(dtype).requires_grad_()

    return make


def integers(*shape: int, high: int) -> Callable[[torch.dtype], torch.Tensor]:
    """A maker of int64 values below ``high``."""

    def make(dtype: torch.dtype) -> torch.Tensor:
        generator = torch.Generator().manual_seed(high)
        return torch.randint(high, shape, generator=generator)

    return make


def case(function: Callable[..., Any], *makers: Any, gradient: bool = True, **numbers: Any) -> Case:
    """A call whose arguments are made (tensors) or given (everything else)."""

    def arguments(dtype: torch.dtype) -> tuple[Any, ...]:
        return tuple(m(dtype) if callable(m) else m for m in makers)

    return Case(functools.partial(function, **numbers) if numbers else function, arguments, gradient)


X, Y = tensor(3, 5), tensor(3, 5, low=0.5)
POSITIVE = tensor(4, 7, low=0.1, high=3.0)
CUBE = tensor(2, 3, 4)
FOUR = tensor(2, 3, 4, 5)
ROW = tensor(5, low=0.5)
CONVERSIONS = (
    torch.float16, torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip


def _unary(function: Callable[..., Any], x: Any = FOUR) -> tuple[Case, ...]:
    return (case(function, x), case(function, tensor(low=0.5)), case(function, tensor(0, 3)))


def _binary(function: Callable[..., Any], gradient: bool = True) -> tuple[Case, ...]:
    return (
        case(function, X, Y, gradient=gradient),
        case(function, X, ROW, gradient=gradient),  # broadcast
        case(function, X, 0.75, gradient=gradient),
        case(function, tensor(3, 1, 5), tensor(4, 1, low=0.5), gradient=gradient),
    )


def _reduction(function: Callable[..., Any]) -> tuple[Case, ...]:
    """With and without keepdim, over one dimension, two, three and all, of tensors of two to five dimensions."""
    return (
        case(function, X, [1], False),
        case(function, X, [0], True),
        case(function, CUBE, [0, 2], False),
        case(function, FOUR, [1, 2, 3], False),
        case(function, FOUR, [-1], True),
        case(function, tensor(2, 3, 2, 3, 2), [1, 3], False),
        case(lambda x: function(x, [*range(x.dim())], False), FOUR),
    )


def _comparison(function: Callable[..., Any]) -> tuple[Case, ...]:
    whole = case(lambda x, y: function(x.round(), y.round()), X, Y, gradient=False)
    return (*_binary(function, gradient=False), whole, case(function, integers(6, high=3), 1, gradient=False))


def _like(function: Callable[..., Any]) -> tuple[Case, ...]:
    return (
        case(function, X, gradient=False),
        case(lambda x: function(x, dtype=torch.int64), FOUR, gradient=False),
        case(lambda x: function(x, dtype=torch.bool), tensor(0, 2), gradient=False),
    )


def _made(function: Callable[..., Any]) -> tuple[Case, ...]:
    """Of a shape that the argument's sizes decide."""
    return (
        case(lambda x: function((x.shape[1], 2), x), X, gradient=False),
        case(lambda x: function((), x), X, gradient=False),
        case(lambda x: x + function(x.shape, x), CUBE),
    )


def _normalized(x: Any, weight: Any, bias: Any, mean: Any, variance: Any) -> Any:
    """Without the saved statistics, whose shape differs between torch's devices."""
    return aten._native_batch_norm_legit_no_training(x, weight, bias, mean, variance, 0.1, 1e-5)[0]


def _int8_product(x: Any, weight: Any, scales: Any) -> Any:
    packed = (weight - 100).to(torch.int8)
    return aten._weight_int8pack_mm(x.to(torch.bfloat16), packed, scales.to(torch.bfloat16))


def _apply_rotary(x: Any, cos: Any, sin: Any) -> Any:
    """Pairs of neighbours rotated (RoFormer, section 3.4.2)."""
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def _rope_halves(x: Any, cos: Any, sin: Any) -> Any:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _update_cache(value: Any, cache: Any, start: int) -> Any:
    """[B, T, H, D] into a copy of [B, S, H, D] from position ``start`` on."""
    copy = cache.clone()
    copy[:, start : start + value.shape[1]] = value
    return copy


def _cached_attention(q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any, start: int) -> Any:
    keys, values = _update_cache(k, k_cache, start), _update_cache(v, v_cache, start)
    end = start + q.shape[1]
    mask = torch.ones(q.shape[1], end, dtype=torch.bool, device=q.device).tril(start)
    heads = [t.transpose(1, 2) for t in (q, keys[:, :end], values[:, :end])]
    attended: Any = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], attn_mask=mask, enable_gqa=True)
    return attended.transpose(1, 2), keys, values


def _grid_priors(x: Any, stride: int, offset: float) -> Any:
    """[H * W, 2]: the centres of the cells of a feature map, in pixels."""
    rows = (torch.arange(x.shape[-2], device=x.device) + offset) * stride
    columns = (torch.arange(x.shape[-1], device=x.device) + offset) * stride
    grid_y, grid_x = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack((grid_x.reshape(-1), grid_y.reshape(-1)), dim=-1)


def _symbolic(function: Callable[[Any, Any], Any]) -> tuple[Case, ...]:
    """A number made of two sizes, used as a shape and as a value."""

    def call(x: Any) -> Any:
        number = function(x.shape[0], x.shape[1])
        return x * int(number), x.new_ones(int(number) + 1)

    return (case(call, X), case(call, tensor(5, 5)), case(call, tensor(6, 2)))


HEADS = tensor(2, 4, 6, 8)
IMAGE = tensor(2, 4, 7, 9)
CACHE = tensor(1, 16, 2, 8)
STEP = tensor(1, 3, 2, 8)

_ATEN: dict[str, tuple[Case, ...]] = {
    "_log_softmax": tuple(case(aten._log_softmax, x, d, False) for x, d in ((X, 1), (FOUR, 1), (CUBE, 0))),
    "_softmax": tuple(case(aten._softmax, x, d, False) for x, d in ((X, 1), (FOUR, 1), (CUBE, 0))),
    "_native_batch_norm_legit_no_training": (
        case(_normalized, IMAGE, tensor(4), tensor(4), tensor(4), tensor(4, low=0.5), gradient=False),
        case(_normalized, tensor(3, 4), None, None, tensor(4), tensor(4, low=0.5), gradient=False),
    ),
    "_to_copy": (
        *(case(lambda x, to=to: x.to(to), X, gradient=to.is_floating_point) for to in CONVERSIONS),
        case(lambda x: x.to(torch.float32), integers(4, 5, high=100), gradient=False),
    ),
    "_weight_int8pack_mm": (
        case(_int8_product, tensor(4, 32), integers(16, 32, high=200), tensor(16, low=0.01, high=0.1), gradient=False),
    ),
    "abs": _unary(torch.abs),
    "add": (*_binary(torch.add), case(lambda x, y: torch.add(x, y, alpha=2.5), X, Y)),
    "addmm": (
        case(torch.addmm, tensor(5), tensor(3, 4), tensor(4, 5)),
        case(lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2.0), tensor(3, 5), tensor(3, 4), tensor(4, 5)),
        case(lambda b, x, y: torch.addmm(b, x, y.t()), tensor(1), tensor(1, 64), tensor(33, 64)),
    ),
    "amax": _reduction(torch.amax),
    "amin": _reduction(torch.amin),
    "arange": (
        case(lambda x: torch.arange(x.shape[0], device=x.device), X, gradient=False),
        case(lambda x: torch.arange(1, x.shape[1] * 2, 2, device=x.device, dtype=x.dtype), X, gradient=False),
        case(lambda x: torch.arange(0.5, 3.0, 0.25, device=x.device), X, gradient=False),
    ),
    "avg_pool2d": (
        case(F.avg_pool2d, IMAGE, 2),
        case(F.avg_pool2d, tensor(4, 7, 9), (3, 2), 1, (1, 1)),
        case(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), IMAGE),
        case(lambda x: F.avg_pool2d(x, 3, divisor_override=5), IMAGE),
    ),
    "bmm": (
        case(torch.bmm, tensor(2, 3, 4), tensor(2, 4, 5)),
        case(lambda a, b: torch.bmm(a, b.transpose(1, 2)), tensor(3, 1, 33), tensor(3, 17, 33)),
    ),
    "cat": (
        case(lambda a, b: torch.cat((a, b), 0), X, tensor(2, 5)),
        case(lambda a, b, c: torch.cat((a, b, c), -1), tensor(2, 1), tensor(2, 7), tensor(2, 0)),
        case(lambda a: torch.cat([a] * 7, 1), CUBE),
    ),
    "clamp": (
        case(lambda x: torch.clamp(x, -0.5, 0.5), X), case(lambda x: torch.clamp(x, min=0.25), X),
        case(lambda x: torch.clamp(x, max=0.25), X), case(torch.clamp, X, tensor(3, 5, low=-1, high=0), Y),
    ),
    "clone": (
        case(torch.clone, FOUR),
        case(lambda x: x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format), FOUR),
        case(lambda x: x.clone(memory_format=torch.channels_last), FOUR),
    ),
    "constant_pad_nd": (
        case(lambda x: F.pad(x, (1, 2)), X), case(lambda x: F.pad(x, (1, 0, 2, 3), value=1.5), FOUR),
        case(lambda x: F.pad(x, (-1, 1, 0, -1, 2, 0)), FOUR),
    ),
    "convolution": (
        case(F.conv1d, tensor(2, 4, 11), tensor(6, 4, 3), tensor(6)),
        case(lambda x, w: F.conv1d(x, w, stride=2, padding=2, dilation=2, groups=2), tensor(3, 4, 11), tensor(6, 2, 3)),
        case(lambda x, w, b: F.conv2d(x, w, b, padding=1), tensor(3, 4, 7, 6), tensor(5, 4, 3, 3), tensor(5)),
        case(lambda x, w: F.conv2d(x, w, groups=4, stride=2), tensor(2, 4, 7, 6), tensor(4, 1, 3, 3)),
        case(lambda x, w: F.conv3d(x, w, padding=1), tensor(2, 3, 4, 5, 4), tensor(4, 3, 3, 2, 3)),
        case(lambda x, w, b: F.conv_transpose1d(x, w, b, stride=2, output_padding=1), tensor(2, 4, 6), tensor(4, 3, 4),
             tensor(3)),
        case(lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, groups=2), tensor(2, 4, 5, 5),
             tensor(4, 3, 3, 3)),
        case(lambda x, w: F.conv_transpose3d(x, w, dilation=2), tensor(1, 2, 3, 4, 3), tensor(2, 3, 2, 2, 2)),
    ),
    "cos": _unary(torch.cos),
    "div": (
        *_binary(torch.div),
        case(lambda x, y: torch.div(x * 10, y, rounding_mode="floor"), X, Y, gradient=False),
        case(lambda x, y: torch.div(x * 10, y, rounding_mode="trunc"), X, ROW, gradient=False),
        case(lambda x: torch.div(x, 3, rounding_mode="floor"), integers(7, high=50), gradient=False),
    ),
    "embedding": (
        case(lambda i, w: F.embedding(i, w), integers(2, 6, high=10), tensor(10, 8)),
        case(lambda i, w: F.embedding(i, w, padding_idx=3), integers(5, high=10), tensor(10, 3)),
    ),
    "eq": _comparison(torch.eq),
    "exp": _unary(torch.exp),
    "expand_copy": (
        case(lambda x: torch.expand_copy(x, (4, 3, 5)), X),
        case(lambda x: torch.expand_copy(x, (x.shape[0], x.shape[0] + 1)), tensor(3, 1)),
    ),
    "flip": (
        case(lambda x: x.flip(0), X), case(lambda x: x.flip(1, 3), FOUR), case(lambda x: x.flip(0, 1, 2), CUBE),
    ),
    "full": (*_made(lambda shape, x: torch.full(shape, 1.5, device=x.device, dtype=x.dtype)),
             case(lambda x: torch.full((3, 2), 7, device=x.device), X, gradient=False)),
    "full_like": _like(lambda x, **kwargs: torch.full_like(x, 3, **kwargs)),
    "ge": _comparison(torch.ge),
    "gelu": (*_unary(F.gelu), case(lambda x: F.gelu(x, approximate="tanh"), FOUR)),
    "gt": _comparison(torch.gt),
    "hardshrink": _unary(F.hardshrink),
    "hardtanh": (*_unary(F.hardtanh), case(lambda x: F.hardtanh(x, -0.25, 0.75), FOUR)),
    "index_select": (
        case(lambda x, i: x.index_select(0, i), X, integers(4, high=3)),
        case(lambda x, i: x.index_select(2, i), FOUR, integers(9, high=4)),
    ),
    "le": _comparison(torch.le),
    "leaky_relu": (*_unary(F.leaky_relu), case(lambda x: F.leaky_relu(x, 0.3), FOUR)),
    "linear": (
        case(F.linear, tensor(3, 16), tensor(8, 16), tensor(8)),
        case(F.linear, tensor(2, 3, 16), tensor(8, 16)),
        case(F.linear, tensor(33), tensor(5, 33), tensor(5)),
    ),
    "lt": _comparison(torch.lt),
    "max_pool2d": (
        case(F.max_pool2d, IMAGE, 2), case(lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), tensor(4, 7, 9)),
        case(lambda x: F.max_pool2d(x, (2, 3), dilation=2), IMAGE),
    ),
    "max_pool2d_with_indices": (
        case(lambda x: F.max_pool2d(x, 2, return_indices=True), IMAGE),
        case(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), tensor(1, 2, 9, 6)),
    ),
    "mean": _reduction(torch.mean),
    "minimum": (case(torch.minimum, X, Y), case(torch.minimum, X, ROW)),
    "mm": (
        case(torch.mm, tensor(3, 4), tensor(4, 5)), case(torch.mm, tensor(1, 70), tensor(70, 33)),
        case(lambda a, b: torch.mm(a.t(), b), tensor(9, 6), tensor(9, 5)),
    ),
    "native_group_norm": (
        case(lambda x, w, b: F.group_norm(x, 2, w, b), IMAGE, tensor(4), tensor(4)),
        case(lambda x: F.group_norm(x, 4), tensor(3, 4, 5)),
    ),
    "native_layer_norm": (
        case(lambda x, w, b: F.layer_norm(x, (16,), w, b), tensor(4, 16), tensor(16), tensor(16)),
        case(lambda x: F.layer_norm(x, (4, 5)), FOUR),
    ),
    "neg": _unary(torch.neg),
    "ones": _made(lambda shape, x: torch.ones(shape, device=x.device, dtype=x.dtype)),
    "ones_like": _like(torch.ones_like),
    "permute": (
        case(lambda x: x.permute(2, 0, 1) * 2, CUBE), case(lambda x: x.permute(3, 1, 0, 2).contiguous(), FOUR),
        case(lambda x: x.permute(4, 0, 2, 1, 3) + 1, tensor(2, 3, 2, 3, 2)),
    ),
    "permute_copy": (
        case(lambda x: torch.permute_copy(x, (1, 0)), X),
        case(lambda x: torch.permute_copy(x, (0, 2, 3, 1)), FOUR),
    ),
    "pow": (
        case(lambda x: x.pow(3), X), case(lambda x: x.pow(0.5), POSITIVE), case(torch.pow, POSITIVE, tensor(4, 7)),
        case(lambda x: torch.pow(2.0, x), X),
    ),
    "relu": _unary(F.relu),
    "repeat": (
        case(lambda x: x.repeat(2, 3), X), case(lambda x: x.repeat(2, 1, 3), X),
        case(lambda x: x.repeat(x.shape[0], 1), X), case(lambda x: x.repeat(2, 2, 1, 3), FOUR),
    ),
    "round": (
        case(torch.round, X, gradient=False), case(lambda x: torch.round(x * 2) / 2, X, gradient=False),
        case(lambda x: torch.round(x, decimals=1), X, gradient=False),
    ),
    "rsqrt": _unary(torch.rsqrt, POSITIVE)[:2],
    "scalar_tensor": (
        case(lambda x: x * torch.scalar_tensor(2.5, dtype=x.dtype, device=x.device), X),
        case(lambda x: torch.scalar_tensor(x.shape[0], device=x.device), X, gradient=False),
    ),
    "select_copy": (
        case(lambda x: torch.select_copy(x, 0, 1), X), case(lambda x: torch.select_copy(x, -1, -2), FOUR),
    ),
    "sigmoid": _unary(torch.sigmoid),
    "sin": _unary(torch.sin),
    "slice_copy": (
        case(lambda x: torch.slice_copy(x, 0, 1, 3), X), case(lambda x: torch.slice_copy(x, 3, 0, 5, 2), FOUR),
        case(lambda x: torch.slice_copy(x, 1, -2), CUBE),
    ),
    "split": (
        case(lambda x: torch.split(x, 2, 1), X), case(lambda x: [t * 2 for t in torch.split(x, [1, 3], 2)], CUBE),
    ),
    "split_with_sizes_copy": (
        case(lambda x: torch.split_with_sizes_copy(x, [2, 3], 1), X),
        case(lambda x: torch.split_with_sizes_copy(x, [1, 0, 3], 2), CUBE),
    ),
    "sqrt": _unary(torch.sqrt, POSITIVE),
    "squeeze_copy": (
        case(lambda x: torch.squeeze_copy(x, 1), tensor(3, 1, 5)),
        case(lambda x: torch.squeeze_copy(x, [0, 2]), tensor(1, 3, 1, 2)),
        case(torch.squeeze_copy, tensor(1, 3, 1, 2)),
    ),
    "sub": (*_binary(torch.sub), case(lambda x, y: torch.sub(x, y, alpha=0.5), X, Y)),
    "sum": _reduction(torch.sum),
    "t_copy": (case(torch.t_copy, X), case(torch.t_copy, tensor(4))),
    "tanh": _unary(torch.tanh),
    "unsqueeze_copy": (
        case(lambda x: torch.unsqueeze_copy(x, 1), X), case(lambda x: torch.unsqueeze_copy(x, -1), CUBE),
    ),
    "upsample_bilinear2d": (
        case(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), IMAGE),
        case(lambda x: F.interpolate(x, size=(5, 13), mode="bilinear", align_corners=True), IMAGE),
    ),
    "upsample_nearest2d": (
        case(lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), IMAGE),
        case(lambda x: F.interpolate(x, size=(5, 13), mode="nearest"), IMAGE),
    ),
    "view_copy": (
        case(lambda x: torch.view_copy(x, (5, 3)), X), case(lambda x: torch.view_copy(x, (x.shape[0], -1)), FOUR),
        case(lambda x: torch.view_copy(x, torch.int8) if x.dtype == torch.int8 else torch.view_copy(x, (-1,)), CUBE),
    ),
    "zeros": _made(lambda shape, x: torch.zeros(shape, device=x.device, dtype=x.dtype)),
    "zeros_like": _like(torch.zeros_like),
    "_assert_scalar": (
        case(lambda x: (torch._check(x.shape[0] > 0), x + 1)[1], X),
        case(lambda x: (aten._assert_scalar(x.shape[1] > 1, "two at least"), x * 2)[1], X),
    ),
    "sym_constrain_range_for_size": (
        case(lambda x: (aten.sym_constrain_range_for_size(x.shape[0], min=0, max=100), x.new_zeros(x.shape[0]))[1], X,
             gradient=False),
    ),
    "sym_size": (
        case(lambda x: x * x.shape[0] + x.size(1), X), case(lambda x: x.reshape(x.size(0), -1).sum(1), FOUR),
    ),
    "scaled_dot_product_attention": (
        case(F.scaled_dot_product_attention, HEADS, HEADS, HEADS),
        case(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), HEADS, HEADS, HEADS),
        case(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), HEADS, tensor(2, 2, 9, 8),
             tensor(2, 2, 9, 8)),
    ),
    "mul": _binary(torch.mul),
    "argmax": (
        case(lambda x: x.argmax(1), X, gradient=False), case(lambda x: x.argmax(), FOUR, gradient=False),
        case(lambda x: x.argmax(-1, keepdim=True), FOUR, gradient=False),
    ),
    "rms_norm": (
        case(lambda x, w: F.rms_norm(x, (16,), w), tensor(4, 16), tensor(16)),
        case(lambda x: F.rms_norm(x, (4, 5), eps=1e-3), FOUR),
    ),
}  # fmt: skip

_OTHERS: dict[tuple[str, str], tuple[Case, ...]] = {
    ("dim_order_ops", "_clone_dim_order"): (
        case(lambda x: x.clone(memory_format=torch.channels_last), FOUR),
        case(lambda x: x.to(torch.int32, memory_format=torch.channels_last), FOUR, gradient=False),
    ),
    ("dim_order_ops", "_to_dim_order_copy"): (
        case(lambda x: x.to(torch.float32, memory_format=torch.channels_last), FOUR),
        case(lambda x: x.contiguous(memory_format=torch.channels_last).to(torch.bool, copy=True), FOUR, gradient=False),
    ),
    ("llama", "custom_sdpa"): (
        case(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), HEADS, HEADS, HEADS),
        case(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.5, enable_gqa=True), HEADS,
             tensor(2, 1, 11, 8), tensor(2, 1, 11, 8)),
    ),
    ("llama", "sdpa_with_kv_cache"): (
        case(_cached_attention, tensor(1, 3, 4, 8), STEP, STEP, CACHE, CACHE, 5, gradient=False),
        case(_cached_attention, tensor(1, 3, 2, 8), STEP, STEP, CACHE, CACHE, 0, gradient=False),
    ),
    ("llama", "update_cache"): (case(_update_cache, STEP, CACHE, 0), case(_update_cache, STEP, CACHE, 13)),
    ("et_vk", "apply_rotary_emb"): (
        case(_apply_rotary, tensor(2, 5, 3, 8), tensor(5, 1, 4), tensor(5, 1, 4)),
        case(_rope_halves, HEADS, tensor(6, 8), tensor(6, 8)),
    ),
    ("et_vk", "conv_with_clamp"): (
        case(lambda x, w, b: F.conv2d(x, w, b, padding=1).clamp(-0.5, 0.75), tensor(3, 4, 7, 6), tensor(5, 4, 3, 3),
             tensor(5)),
        case(lambda x, w: F.conv_transpose1d(x, w, stride=2).clamp(min=0), tensor(2, 4, 6), tensor(4, 3, 4)),
    ),
    ("et_vk", "grid_priors"): (case(_grid_priors, IMAGE, 8, 0.5, gradient=False),),
    ("operator", "add"): _symbolic(lambda a, b: a + b),
    ("operator", "eq"): _symbolic(lambda a, b: a == b),
    ("operator", "ge"): _symbolic(lambda a, b: a >= b),
    ("operator", "gt"): _symbolic(lambda a, b: a > b),
    ("operator", "le"): _symbolic(lambda a, b: a <= b),
    ("operator", "lt"): _symbolic(lambda a, b: a < b),
    ("operator", "getitem"): (case(lambda x: torch.split(x, [1, 2], 1)[1] * x.shape[1], CUBE),),
    ("custom", "rope"): (
        case(_rope_halves, HEADS, tensor(6, 8), tensor(6, 8)),
        case(_apply_rotary, tensor(2, 5, 3, 8), tensor(5, 1, 4), tensor(5, 1, 4)),
    ),
    ("custom", "silu-gate"): (case(lambda gate, up: F.silu(gate) * up, FOUR, FOUR),),
    ("custom", "residual add"): (case(lambda x, y: x + y, FOUR, FOUR),),
    ("custom", "attention with KV cache"): (
        case(_cached_attention, tensor(1, 3, 4, 8), STEP, STEP, CACHE, CACHE, 5, gradient=False),
    ),
    ("custom", "kv_store"): (case(_update_cache, STEP, CACHE, 7),),
}  # fmt: skip

CASES: dict[tuple[str, str], tuple[Case, ...]] = {("aten", name): cases for name, cases in _ATEN.items()} | _OTHERS
