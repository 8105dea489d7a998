"""Automatic mixed precision: `torch.autocast("vulkan", dtype=...)`.

torch runs no autocast rules for a Python device, so they are kernels here, on the AutocastPrivateUse1 key.
The lists are those of CUDA, as documented in torch's "Autocast Op Reference". Casts are differentiable;
weights are cast at each use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vkinductor.device.registry import DEVICE_NAME
from vkinductor.runtime.errors import UnsupportedError

SUPPORTED_DTYPES = (torch.float16, torch.bfloat16)

# Run in the autocast dtype: matrix multiplication and convolution gain most and sum in float32 anyway.
LOWER = (
    "_convolution", "_convolution.deprecated", "convolution", "conv1d", "conv1d.padding", "conv2d",
    "conv2d.padding", "conv3d", "conv3d.padding", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "prelu", "addmm", "addmv", "addr", "matmul",
    "einsum", "mm", "mv", "linalg_vecdot", "linalg_multi_dot", "linear", "addbmm", "baddbmm", "bmm",
    "chain_matmul", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell",
    "rnn_tanh_cell", "rnn_relu_cell", "scaled_dot_product_attention",
)  # fmt: skip

# Run in float32: a small relative error of the input is a large one of the result, or sums are long.
FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal",
    "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus",
    "layer_norm", "native_layer_norm", "group_norm", "norm.Scalar", "norm.ScalarOpt_dim",
    "norm.names_ScalarOpt_dim", "nuclear_norm", "nuclear_norm.dim", "frobenius_norm.dim",
    "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d",
    "_upsample_nearest_exact2d", "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
)  # fmt: skip

# Take a `dtype` argument: it becomes float32 unless it was given.
FLOAT32_RESULT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "sum",
    "sum.dim_IntList", "linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord",
)  # fmt: skip

# Mixed inputs are cast to the widest floating-point dtype among them.
WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put",
    "tensordot", "scatter_add",
)  # fmt: skip

_KEY = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastPrivateUse1"))


def _eligible(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.device.type == DEVICE_NAME
        and value.dtype is not torch.float64
    )


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if _eligible(value):
        return value if value.dtype is dtype else value.to(dtype)
    if isinstance(value, (list, tuple)) and any(isinstance(element, torch.Tensor) for element in value):
        return [_cast(element, dtype) for element in value]
    return value


def _run(op: Any, dtype: torch.dtype | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(_KEY):
        if dtype is not None:
            args = tuple(_cast(value, dtype) for value in args)
            kwargs = {name: _cast(value, dtype) for name, value in kwargs.items()}
        return op(*args, **kwargs)


def _lower(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: _run(op, torch.get_autocast_dtype(DEVICE_NAME), args, kwargs)


def _float32(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: _run(op, torch.float32, args, kwargs)


def _float32_result(op: Any) -> Callable[..., Any]:
    names = [argument.name for argument in op._schema.arguments]
    place = names.index("dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = args[place] if len(args) > place else kwargs.get("dtype")
        if given is None and _eligible(args[0]):
            rest = dict(zip(names[place + 1 :], args[place + 1 :], strict=False))
            args, kwargs = args[:place], {**kwargs, **rest, "dtype": torch.float32}
        return _run(op, None, args, kwargs)

    return kernel


def _widest(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        flat = [
            e for v in (*args, *kwargs.values()) for e in (v if isinstance(v, (list, tuple)) else (v,)) if _eligible(e)
        ]
        widest: torch.dtype | None = None
        for tensor in flat:
            widest = tensor.dtype if widest is None else torch.promote_types(widest, tensor.dtype)
        return _run(op, widest, args, kwargs)

    return kernel


def _binary_cross_entropy(*args: Any, **kwargs: Any) -> Any:
    raise UnsupportedError(
        "binary_cross_entropy is unsafe under autocast (log of a rounded probability): use "
        "binary_cross_entropy_with_logits, or disable autocast around it"
    )


_POLICIES: tuple[tuple[tuple[str, ...], Callable[[Any], Callable[..., Any]]], ...] = (
    (LOWER, _lower),
    (FLOAT32, _float32),
    (FLOAT32_RESULT, _float32_result),
    (WIDEST, _widest),
    (("binary_cross_entropy",), lambda op: _binary_cross_entropy),
)


def register(library: torch.library.Library, every: torch.library.Library) -> None:
    """Add the rules to torch's "aten" library; operators without a rule pass through."""
    every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for names, policy in _POLICIES:
        for name in names:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if op is not None:  # the lists hold names of all supported torch versions
                library.impl(name, policy(op), "AutocastPrivateUse1")
