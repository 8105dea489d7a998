"""Copies between host and device and on the device, whatever the dtypes, strides, and conjugate or negative
bits.

Host memory is touched by torch's CPU kernels and the stream's uploads and downloads alone; device memory by
kernels and transfers alone. Which kernel moves strided memory is `strided`'s business.
"""

from __future__ import annotations

import struct
from typing import Any

import torch

from vkinductor.device import storage, strided, strides
from vkinductor.device.dtypes import DTYPES
from vkinductor.device.registry import DEVICE_NAME, registry
from vkinductor.device.storage import TorchDevice
from vkinductor.device.strided import Operand
from vkinductor.runtime.errors import UnsupportedError

Scalar = bool | int | float | complex

# How a number lies in memory; dtypes that are none of `struct`'s go through a tensor on the host.
_NUMBERS = {
    torch.bool: struct.Struct("?"),
    torch.uint8: struct.Struct("B"),
    torch.int8: struct.Struct("b"),
    torch.int16: struct.Struct("h"),
    torch.int32: struct.Struct("i"),
    torch.int64: struct.Struct("q"),
    torch.float16: struct.Struct("e"),
    torch.float32: struct.Struct("f"),
    torch.float64: struct.Struct("d"),
}


def copy_(dst: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """dst[...] = src, broadcast and converted to dst's dtype; each is on vulkan or on the CPU. Returns dst.

    Copies to and from the host are finished when this returns. Where the two overlap on the device, all of
    src is read first.

    Raises:
        RuntimeError: shapes do not broadcast, or several elements of dst share one place in memory.
        UnsupportedError: another device, or a sparse or quantized tensor.
    """
    if src.layout is not torch.strided or dst.layout is not torch.strided or src.is_quantized or dst.is_quantized:
        raise UnsupportedError(
            f"cannot copy {_kind(src)} to {_kind(dst)}: only dense tensors live on vulkan; call .to_dense() or "
            ".dequantize() first"
        )
    if src.size() != dst.size():
        src = src.expand(dst.size())
    if dst.numel() == 0:
        return dst
    if any(s == 0 and n > 1 for n, s in zip(dst.size(), dst.stride(), strict=True)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory "
            "location; clone() the tensor before writing to it"
        )
    route = _ROUTES.get((dst.device.type, src.device.type))
    if route is None:
        raise UnsupportedError(f"cannot copy from {src.device} to {dst.device}: go through the CPU, with .cpu()")
    route(dst, src)
    return dst


def _kind(tensor: torch.Tensor) -> str:
    what = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
    return f"a {what} tensor on {tensor.device}"


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """A new vulkan tensor with the values of a CPU tensor; the strides are kept if they are dense, else
    row-major."""
    size = tuple(tensor.size())
    stride = tuple(tensor.stride())
    if not strides.is_dense(size, stride):
        stride = strides.contiguous(size)
    made = storage.empty(size, stride, tensor.dtype)
    return copy_(made, tensor)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A new CPU tensor with the values of a vulkan tensor; the strides are kept if they are dense, else
    row-major.

    Conjugate and negative bits are kept as bits.
    """
    host = _download(tensor)
    if tensor.is_conj():
        host = host.conj()
    return torch._neg_view(host) if tensor.is_neg() else host


def mark() -> int:
    """Submit what has been recorded. Returns what `to_host_after` waits for."""
    return registry.open().stream.mark()


def to_host_after(tensor: torch.Tensor, after: int) -> torch.Tensor:
    """A new CPU tensor with the values that a row-major vulkan tensor had at a `mark`.

    No later command may write there. Where the host sees the device's memory, it does not wait for later ones.
    """
    host = torch.empty(tensor.size(), dtype=tensor.dtype)
    assert tensor.is_contiguous(), "only row-major tensors are read like that"
    if host.numel():
        registry.open().stream.download(host.data_ptr(), tensor.data_ptr(), host.nbytes, after)
    return host


def item(tensor: torch.Tensor) -> Scalar:
    """The one element of a vulkan tensor as a Python number; waits for the device."""
    number = _NUMBERS.get(tensor.dtype)
    if number is None or tensor.is_neg():
        return to_host(tensor).item()
    # A token is read after each step of a language model: straight from memory, without a tensor for it.
    value: Scalar = number.unpack(registry.open().stream.read(tensor.data_ptr(), number.size))[0]
    return value


def fill_(tensor: torch.Tensor, value: Scalar) -> torch.Tensor:
    """tensor[...] = value. Returns tensor.

    Raises:
        RuntimeError: value does not fit the dtype.
    """
    size = tuple(tensor.size())
    element = torch.empty((), dtype=tensor.dtype)
    if tensor.is_conj() and isinstance(value, complex):
        value = value.conjugate()
    if tensor.is_neg():
        value = -value
    element.fill_(value)
    if 0 not in size:
        pattern = element.reshape(1).view(torch.uint8).numpy().tobytes()
        strided.fill(registry.open(), size, _raw(tensor), pattern)
    return tensor


def copy_bytes(dst: int, src: int, nbytes: int) -> None:
    """Copy device memory from address to address; the ranges must not overlap."""
    registry.open().stream.copy(dst, src, nbytes)


# Routes.


def _device_to_device(dst: torch.Tensor, src: torch.Tensor) -> None:
    device = registry.open()
    at, to = _operand(src), _operand(dst)
    plain = not (dst.is_conj() or src.is_conj()) and to.negate == at.negate
    if dst.dtype == src.dtype and plain and to.address == at.address:
        size = tuple(dst.size())
        if strides.same_order(size, to.stride, at.stride):
            return
    if _overlap(dst, src):
        between = storage.empty_contiguous(src.size(), src.dtype)
        strided.copy(device, tuple(src.size()), _raw(between), _raw(src))
        at = Operand(between.data_ptr(), tuple(between.stride()), src.dtype, at.negate)
    _convert(device, tuple(dst.size()), to, at, dst.is_conj() != src.is_conj())


def _convert(device: TorchDevice, size: tuple[int, ...], dst: Operand, src: Operand, conjugate: bool) -> None:
    """dst = src; complex operands are taken apart where real and imaginary parts are treated differently."""
    if not (DTYPES[dst.dtype].component or DTYPES[src.dtype].component):
        _real(device, size, dst, src)
        return
    negate = dst.negate != src.negate
    if dst.dtype == src.dtype and not conjugate and not negate:
        strided.copy(device, size, _bare(dst), _bare(src))
        return
    from_complex = DTYPES[src.dtype].component is not None
    to_complex = DTYPES[dst.dtype].component is not None
    real = src.part(0) if from_complex else _bare(src)
    _real(device, size, dst.part(0) if to_complex else _bare(dst), _negated(real, negate))
    if to_complex:
        imaginary = dst.part(1)
        if from_complex:
            _real(device, size, imaginary, _negated(src.part(1), negate != conjugate))
        else:
            strided.fill(device, size, imaginary, bytes(imaginary.dtype.itemsize))


def _real(device: TorchDevice, size: tuple[int, ...], dst: Operand, src: Operand) -> None:
    same = dst.dtype == src.dtype and dst.negate == src.negate
    if same or strided.convertible(device, dst.dtype, src.dtype):
        strided.copy(device, size, dst, src)
        return
    # No kernel can compute with these dtypes here (float8, or float64 on a device without it): the CPU
    # converts.
    gathered = storage.empty_contiguous(size, src.dtype)
    strided.copy(device, size, _raw(gathered), _bare(src))
    host = _download(gathered)
    if dst.negate != src.negate:
        host = torch.neg(host)
    scattered = _upload(host.to(dst.dtype))
    strided.copy(device, size, _bare(dst), _raw(scattered))


def _host_to_device(dst: torch.Tensor, src: torch.Tensor) -> None:
    size, stride = tuple(dst.size()), tuple(dst.stride())
    if dst.is_conj() or dst.is_neg() or not strides.is_dense(size, stride):
        _device_to_device(dst, _upload(src.to(dst.dtype)))
        return
    plain = src.dtype == dst.dtype and not src.is_conj() and not src.is_neg()
    if not (plain and strides.same_order(size, src.stride(), stride)):
        src = torch.empty_strided(size, stride, dtype=dst.dtype).copy_(src)
    registry.open().stream.upload(dst.data_ptr(), src.data_ptr(), dst.numel() * dst.itemsize)


def _device_to_host(dst: torch.Tensor, src: torch.Tensor) -> None:
    size, stride = tuple(dst.size()), tuple(dst.stride())
    plain = src.dtype == dst.dtype and not (src.is_conj() or src.is_neg() or dst.is_conj() or dst.is_neg())
    if plain and strides.is_dense(size, stride) and strides.same_order(size, src.stride(), stride):
        registry.open().stream.download(dst.data_ptr(), src.data_ptr(), dst.numel() * dst.itemsize)
    else:
        dst.copy_(to_host(src))


_ROUTES = {
    (DEVICE_NAME, DEVICE_NAME): _device_to_device,
    (DEVICE_NAME, "cpu"): _host_to_device,
    ("cpu", DEVICE_NAME): _device_to_host,
}


def _upload(host: torch.Tensor) -> torch.Tensor:
    """A row-major vulkan tensor with the values of a CPU tensor."""
    host = host.resolve_conj().resolve_neg().contiguous()
    made = storage.empty_contiguous(host.size(), host.dtype)
    if host.numel():
        registry.open().stream.upload(made.data_ptr(), host.data_ptr(), host.numel() * host.itemsize)
    return made


def _download(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor with what lies in memory: conjugate and negative bits are ignored."""
    size, stride = tuple(tensor.size()), tuple(tensor.stride())
    device = registry.open()
    dense = strides.is_dense(size, stride)
    host = torch.empty_strided(size, stride if dense else strides.contiguous(size), dtype=tensor.dtype)
    if host.numel():
        source = tensor
        if not dense:
            source = storage.empty_contiguous(size, tensor.dtype)
            strided.copy(device, size, _raw(source), _raw(tensor))
        device.stream.download(host.data_ptr(), source.data_ptr(), host.numel() * host.itemsize)
    return host


# Operands.


def _raw(tensor: torch.Tensor) -> Operand:
    return Operand(tensor.data_ptr(), tuple(tensor.stride()), tensor.dtype)


def _operand(tensor: torch.Tensor) -> Operand:
    return Operand(tensor.data_ptr(), tuple(tensor.stride()), tensor.dtype, tensor.is_neg())


def _bare(operand: Operand) -> Operand:
    return Operand(operand.address, operand.stride, operand.dtype)


def _negated(operand: Operand, negate: bool) -> Operand:
    return Operand(operand.address, operand.stride, operand.dtype, negate)


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    start_a, nbytes_a = storage.nbytes_range(a)
    start_b, nbytes_b = storage.nbytes_range(b)
    return start_a < start_b + nbytes_b and start_b < start_a + nbytes_a


# Kernels.


def _copy_from(src: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`aten._copy_from`: what `Tensor.copy_` and `Tensor.to` end in."""
    return copy_(dst, src)


def _copy_from_and_resize(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    """`aten._copy_from_and_resize`."""
    if dst.size() != src.size():
        dst.resize_(src.size())
    return copy_(dst, src)


def _fill_tensor(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`aten.fill_.Tensor`: value has 0 dimensions, on vulkan (no synchronisation) or on the CPU."""
    if value.dim() != 0:
        raise RuntimeError(f"fill_ only supports a 0-dimensional value tensor, got one with {value.dim()} dimensions")
    return copy_(tensor, value)


def _zero(tensor: torch.Tensor) -> torch.Tensor:
    """`aten.zero_`. Zero is made of zero bytes in every dtype, and is its own conjugate and negative."""
    size = tuple(tensor.size())
    if 0 not in size:
        strided.fill(registry.open(), size, _raw(tensor), bytes(tensor.itemsize))
    return tensor


KERNELS: dict[str, Any] = {
    "_copy_from": _copy_from,
    "_copy_from_and_resize": _copy_from_and_resize,
    "_local_scalar_dense": item,
    "fill_.Scalar": fill_,
    "fill_.Tensor": _fill_tensor,
    "zero_": _zero,
}

# Operators that see the conjugate and negative bits themselves; torch would otherwise resolve them by a copy
# first.
LAZY_BITS = ("_copy_from", "_copy_from_and_resize", "_local_scalar_dense")


def register(library: torch.library.Library) -> None:
    """Add the kernels to torch's "aten" library."""
    for name, kernel in KERNELS.items():
        library.impl(name, kernel, "PrivateUse1")
    for name in LAZY_BITS[:2]:
        for key in ("Conjugate", "Negative"):
            library.impl(name, torch.library.fallthrough_kernel, key)
