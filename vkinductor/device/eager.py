"""Every operator without a kernel of its own: checked, compiled by the hook if that can, else run on the CPU.

Owns the order of those attempts and the operators that torch routes to names of their own on a Python device
(convolution, attention). The compiler is a hook (`hooks`); the CPU side is `fallback`.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch

from vkinductor.device import counted, ctc, distributions, fallback, histograms, optimizers, unique
from vkinductor.device.registry import DEVICE_NAME, registry
from vkinductor.runtime.errors import UnsupportedError

# Arguments that may stay on the CPU beside vulkan tensors, as they may beside CUDA tensors: "name.overload"
# -> arguments.
CPU_ARGUMENTS: dict[str, frozenset[str]] = {
    "index.Tensor": frozenset({"indices"}),
    "index.Tensor_out": frozenset({"indices"}),
    "_unsafe_index.Tensor": frozenset({"indices"}),
    "index_put": frozenset({"indices"}),
    "index_put_": frozenset({"indices"}),
    "_unsafe_index_put": frozenset({"indices"}),
    "_index_put_impl_": frozenset({"indices"}),
    "_pack_padded_sequence": frozenset({"lengths"}),
    "_ctc_loss.Tensor": frozenset({"input_lengths", "target_lengths"}),
    "_ctc_loss_backward.Tensor": frozenset({"input_lengths", "target_lengths"}),
}

# Operators that only make values: from numbers, into out=. The host makes them and uploads: nothing comes
# back.
HOST_MADE = (
    "arange.start_out",
    "eye.out",
    "eye.m_out",
    "linspace.out",
    "logspace.out",
    "randperm.generator_out",
    "range.out",
    "tril_indices",
    "triu_indices",
)

# Operators that torch composes of smaller ones for every device, or turns into out= calls whose copy into the result no
# matrix product can fuse with: the whole has a better kernel.
COMPILED_WHOLE = (
    "addmm",
    "baddbmm",
    "cummax",
    "cummax.out",
    "cummin",
    "cummin.out",
    "logcumsumexp",
    "logcumsumexp.out",
    "native_group_norm",
)

_SDP_MATH = 0  # torch.nn.attention.SDPBackend.MATH

_busy = threading.local()


def dispatch(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The device's kernel for every operator that has none.

    Raises:
        RuntimeError: the tensors are on two devices.
        UnsupportedError: neither the hook nor the CPU can run it.
    """
    _check_devices(op, args, kwargs)
    compile_op = registry.compile_op
    if compile_op is not None and not getattr(_busy, "compiling", False):
        _busy.compiling = True
        try:
            result = compile_op(op, args, kwargs)
        finally:
            _busy.compiling = False
        if result is not NotImplemented:
            return result
    return fallback.run(op, args, kwargs, why=lambda: _why(op, args, kwargs))


def _why(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Why the hook refused a call."""
    why = getattr(registry.compile_op, "why", None)
    return "it has no vulkan kernel" if why is None else why(op, args, kwargs)


def _check_devices(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    stranger: torch.Tensor | None = None
    found = False
    for value in (*args, *kwargs.values()):
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor):
                if tensor.device.type == DEVICE_NAME:
                    found = True
                elif tensor.dim() > 0 or tensor.device.type != "cpu":
                    stranger = tensor
    if stranger is None or not found:
        return
    allowed = CPU_ARGUMENTS.get(_key(op), frozenset())
    for name, value in fallback.bound(op, args, kwargs):
        for tensor in fallback.tensors(value):
            if tensor.device.type == DEVICE_NAME or (
                tensor.device.type == "cpu" and (tensor.dim() == 0 or name in allowed)
            ):
                continue
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, vulkan:0 and "
                f"{tensor.device}! Argument {name!r} of {op} is on {tensor.device}: move it with .to('vulkan')"
            )


def _key(op: Any) -> str:
    name = op._schema.name.partition("::")[2]
    return f"{name}.{op._schema.overload_name}" if op._schema.overload_name else name


def _host_made(op: Any) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return fallback.run(op, args, kwargs, counted=False)

    return kernel


def _convolution(*args: Any) -> torch.Tensor:
    """`convolution_overrideable`: where torch sends `convolution` for this device; the arguments are the
    same."""
    return dispatch(torch.ops.aten.convolution.default, *args)


def _convolution_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, mask: Any,
) -> Any:  # fmt: skip
    """`convolution_backward_overrideable`: lacks `bias_sizes`, which follow from the weight."""
    outputs = weight.size(1) * groups if transposed else weight.size(0)
    return dispatch(
        torch.ops.aten.convolution_backward.default,
        grad, x, weight, [outputs], stride, padding, dilation, transposed, output_padding, groups, mask,
    )  # fmt: skip


def _sdp_choice(*args: Any, **kwargs: Any) -> int:
    """`_fused_sdp_choice`: attention is composed from matmul and softmax; compiled graphs have a kernel of
    their own."""
    return _SDP_MATH


def _never(*args: Any) -> bool:
    """`_nested_tensor_from_mask_left_aligned`: whether torch.nn's encoder may make nested tensors of padded ones."""
    return False


def _zeros(size: Any, *, dtype: Any = None, device: Any = None, **rest: Any) -> torch.Tensor:
    """`_efficientzerotensor`, the tangent of a constant in forward mode: here with memory behind it."""
    return torch.zeros(size, dtype=dtype, device=device)


KERNELS: dict[str, Any] = {
    "_nested_tensor_from_mask_left_aligned": _never,
    "_efficientzerotensor": _zeros,
    "convolution_overrideable": _convolution,
    "convolution_backward_overrideable": _convolution_backward,
    "_fused_sdp_choice": _sdp_choice,
    **unique.KERNELS,
}

# Keys of tensors that are not dense: whatever reaches them is refused.
_REFUSED = {
    "SparsePrivateUse1": ("sparse", ".to_dense()"),
    "SparseCsrPrivateUse1": ("compressed sparse", ".to_dense()"),
    "QuantizedPrivateUse1": ("quantized", ".dequantize()"),
    "NestedTensorPrivateUse1": ("nested", "torch.nested.to_padded_tensor()"),
}


def _refuse(what: str, instead: str) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(f"a {what} tensor cannot live on vulkan; make it dense with {instead} on the CPU first")

    return kernel


def register(library: torch.library.Library, every: torch.library.Library) -> None:
    """Add the kernels to torch's "aten" library, and the fallbacks to `every`, the library of all namespaces
    ("_")."""
    from vkinductor.device.metadata import overload

    made = counted.kernels(dispatch) | distributions.kernels(dispatch) | ctc.kernels(dispatch)
    for name, kernel in (KERNELS | optimizers.KERNELS | histograms.KERNELS | made).items():
        library.impl(name, kernel, "PrivateUse1")
    for name in HOST_MADE:
        library.impl(name, _host_made(overload(name)), "PrivateUse1")
    for name in COMPILED_WHOLE:
        library.impl(name, functools.partial(dispatch, overload(name)), "PrivateUse1")
    every.fallback(dispatch, "PrivateUse1")
    for key, (what, instead) in _REFUSED.items():
        every.fallback(_refuse(what, instead), key)
        # Composed by torch for every key: a compressed tensor would be assembled from dense parts, past the
        # fallback.
        library.impl("_to_copy", _refuse(what, instead), key)
