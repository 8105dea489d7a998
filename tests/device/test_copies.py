"""Copies: every pair of dtypes, every kind of stride, lazy bits, overlap, and what moves where."""

from __future__ import annotations

import itertools

import pytest
import torch

from vkinductor import device_info
from vkinductor.device import copies, strided
from vkinductor.device.dtypes import DTYPES
from vkinductor.device.registry import registry
from vkinductor.runtime import stats
from vkinductor.runtime.errors import UnsupportedError

REAL = [dtype for dtype, entry in DTYPES.items() if entry.storage]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
FLOAT8 = [dtype for dtype in DTYPES if "float8" in str(dtype)]


def sample(dtype: torch.dtype, n: int = 130) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if dtype is torch.bool:
        return torch.rand(n, generator=generator) > 0.5
    if dtype.is_complex:
        return torch.complex(torch.randn(n, generator=generator), torch.randn(n, generator=generator)).to(dtype)
    if dtype.is_floating_point:
        return (torch.rand(n, generator=generator, dtype=torch.float64) * 100).to(dtype)
    return torch.randint(0, 100, (n,), generator=generator).to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in dtype, shape and values; NaN equals NaN."""
    if a.dtype is torch.complex32:  # hardly an operator knows it
        a, b = (torch.view_as_real(t.contiguous().resolve_conj()) for t in (a, b))
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.resolve_conj().nan_to_num(7.5), b.resolve_conj().nan_to_num(7.5))
    )


@pytest.mark.parametrize("dst", REAL, ids=str)
def test_convert_between_real_dtypes(dst: torch.dtype) -> None:
    for src in REAL:
        host = sample(src)
        assert torch.equal(host.to("vulkan").to(dst).cpu(), host.to(dst)), (src, dst)
        if src not in (torch.float32, torch.int64, torch.bool):
            continue
        gaps = torch.zeros(3, 4, 5).to(dst).to("vulkan")
        gaps.permute(2, 0, 1).copy_(host.to("vulkan")[:120].view(2, 60)[:, ::2].reshape(5, 3, 4))
        expected = torch.zeros(3, 4, 5).to(dst)
        expected.permute(2, 0, 1).copy_(host[:120].view(2, 60)[:, ::2].reshape(5, 3, 4))
        assert torch.equal(gaps.cpu(), expected), (src, dst)


@pytest.mark.parametrize("dst", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("src", [torch.float32, torch.float64], ids=str)
def test_rounding_to_16_bits(dst: torch.dtype, src: torch.dtype) -> None:
    bits = torch.randint(-(2**31), 2**31, (20000,), generator=torch.Generator().manual_seed(1)).to(torch.int32)
    special = torch.tensor(
        [
            0.0,
            -0.0,
            float("inf"),
            -float("inf"),
            65504,
            65519.99,
            65520,
            1e38,
            -1e38,
            6e-8,
            2.98e-8,
            2.9802322e-8,
            2.99e-8,
            6.1e-5,
            1 + 2**-11,
        ]
    )
    halves = torch.arange(0, 2**16, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    for host in (bits.view(torch.float32), special, halves, halves + halves.abs() * 2**-12, halves * (1 + 2**-11)):
        expected = host.to(src).to(dst)
        assert same(host.to(src).to("vulkan").to(dst).cpu(), expected)


def test_widening_from_16_bits_is_exact() -> None:
    bits = torch.arange(0, 2**16, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        host = bits.view(dtype)
        device = host.to("vulkan")
        # A GPU may flush a float32 subnormal that it passes through; CPU drivers do not.
        normal = (host.float().abs() >= torch.finfo(torch.float32).tiny) | (host == 0) | host.isnan()
        normal |= torch.tensor(device_info().kind == "cpu")
        assert same(device.float().cpu()[normal], host.float()[normal])
        assert same(device.double().cpu()[normal], host.double()[normal])
        assert torch.equal(device.cpu().view(torch.int16), bits)


def test_large_integers() -> None:
    host = torch.tensor([2**62 + 1, -(2**62) - 12345, 2**53 + 1, 2**24 + 1, -1, 0, 255, 256, -129])
    device = host.to("vulkan")
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool):
        assert torch.equal(device.to(dtype).cpu(), host.to(dtype)), dtype
    high = torch.tensor([2**63, 2**64 - 1, 5], dtype=torch.uint64)
    assert torch.equal(high.to("vulkan").to(torch.int64).cpu(), high.to(torch.int64))


def test_negative_floats_to_unsigned_wrap() -> None:
    host = torch.tensor([-1.0, -1.9, -255.0, 255.9, 300.0])
    assert torch.equal(host.to("vulkan").to(torch.uint8).cpu(), host.to(torch.uint8))


@pytest.mark.parametrize("src", [*COMPLEX, torch.float32, torch.float16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("dst", [*COMPLEX, torch.float32], ids=str)
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_complex(src: torch.dtype, dst: torch.dtype) -> None:
    host = sample(src, 24).view(4, 6)
    assert same(host.to("vulkan").t().to(dst).cpu(), host.t().to(dst))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_conjugate_and_negative_bits(dtype: torch.dtype) -> None:
    host = sample(dtype, 12).view(3, 4)
    device = host.to("vulkan")
    assert device.conj().is_conj()
    assert same(device.conj().cpu(), host.conj())
    assert same(device.conj().resolve_conj().cpu(), host.conj().resolve_conj())
    assert torch.equal(device.conj().imag.cpu(), host.conj().imag)  # imag of a conjugate has the negative bit
    assert device.conj().imag.is_neg()
    assert torch.equal(device.conj().imag.clone().cpu(), host.conj().imag)
    assert torch.equal(device.conj().imag.resolve_neg().cpu(), host.conj().imag.resolve_neg())
    assert same(host.conj().to("vulkan").cpu(), host.conj())
    assert torch.equal(host.conj().imag.to("vulkan").cpu(), host.conj().imag)
    target = torch.zeros_like(device)
    target.conj().copy_(device)
    assert same(target.cpu(), host.conj().resolve_conj())
    target.conj().copy_(host)
    assert same(target.cpu(), host.conj().resolve_conj())
    target.conj().imag.copy_(host.real)
    assert torch.equal(target.imag.cpu(), -host.real)
    target.conj().fill_(1 + 2j)
    assert target[0, 0].item() == 1 - 2j
    assert device.conj()[1, 2].item() == host.conj()[1, 2].item()
    assert device.conj().imag[1, 2].item() == host.conj().imag[1, 2].item()


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8(dtype: torch.dtype) -> None:
    host = torch.tensor([1.0, 2.0, 4.0, 0.5, 8.0, 1.0]).to(dtype)
    device = host.to("vulkan")
    assert torch.equal(device.view(2, 3).t().contiguous().cpu().float(), host.view(2, 3).t().float())
    assert torch.equal(device.float().cpu(), host.float())
    assert torch.equal(host.float().to("vulkan").to(dtype).cpu().float(), host.float())


STRIDED = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, 2),
    "steps": lambda t: t[::2, 1:, ::3],
    "offset": lambda t: t[1:, 2:, 1:],
    "expanded": lambda t: t[:, :1].expand(-1, 9, -1),
    "zero stride": lambda t: t[:1, :1, :1].expand(3, 2, 2),
    "overlapping windows": lambda t: t.reshape(-1).as_strided((5, 4), (2, 1)),
    "scalar": lambda t: t[1, 1, 1],
    "empty": lambda t: t[:0],
    "channels last": lambda t: t[None].contiguous(memory_format=torch.channels_last),
    "high rank": lambda t: t[:4, :8, :4].reshape(2, 2, 2, 2, 2, 2, 2).permute(6, 0, 5, 1, 4, 2, 3),
}


@pytest.mark.parametrize("name", STRIDED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.complex128, torch.bfloat16], ids=str)
def test_strided_sources(name: str, dtype: torch.dtype) -> None:
    host = sample(dtype, 4 * 9 * 7).view(4, 9, 7)
    view, device = STRIDED[name](host), STRIDED[name](host.to("vulkan"))
    assert same(device.cpu(), view)
    assert same(device.clone().cpu(), view)
    assert same(device.contiguous().cpu(), view)
    assert same(view.to("vulkan").cpu(), view)
    assert device.clone().stride() == view.clone().stride()


@pytest.mark.parametrize("name", [n for n in STRIDED if n not in ("expanded", "zero stride", "overlapping windows")])
def test_strided_destinations(name: str) -> None:
    for dtype, src_dtype in itertools.product(
        [torch.float32, torch.float16, torch.uint8], [torch.float32, torch.int64]
    ):
        host = torch.zeros(4, 9, 7, dtype=dtype)
        device = host.to("vulkan")
        if name == "channels last":
            host, device = STRIDED[name](host), STRIDED[name](device)
            target, on_device = host, device
        else:
            host, device = host.clone(), device.clone()
            target, on_device = (STRIDED[name](t.view(4, 9, 7)) for t in (host, device))
            if target.untyped_storage().data_ptr() != host.untyped_storage().data_ptr():
                continue  # reshape copied
        values = sample(src_dtype, max(target.numel(), 1))[: target.numel()].view(target.shape)
        target.copy_(values)
        on_device.copy_(values)
        assert torch.equal(device.cpu(), host)
        on_device.zero_()
        on_device.copy_(values.to("vulkan"))
        assert torch.equal(device.cpu(), host)
        back = torch.empty_like(target)
        back.copy_(on_device)
        assert torch.equal(back, target)


def test_broadcast() -> None:
    target = torch.zeros(3, 4, device="vulkan")
    target.copy_(torch.arange(4.0))
    assert torch.equal(target.cpu(), torch.arange(4.0).expand(3, 4))
    target.copy_(torch.arange(3.0).to("vulkan")[:, None])
    assert torch.equal(target.cpu(), torch.arange(3.0)[:, None].expand(3, 4))
    host = torch.zeros(2, 3)
    host.copy_(torch.tensor([1.0, 2, 3]).to("vulkan"))
    assert host.tolist() == [[1, 2, 3]] * 2
    with pytest.raises(RuntimeError, match="expand"):
        target.copy_(torch.zeros(5))


def test_overlap_reads_everything_first() -> None:
    host = torch.arange(100.0)
    for dst, src in (
        (slice(1, None), slice(None, -1)),
        (slice(None, -1), slice(1, None)),
        (slice(0, 50), slice(25, 75)),
    ):
        device = host.to("vulkan")
        device[dst].copy_(device[src])
        expected = host.clone()
        expected[dst] = host[src].clone()
        assert torch.equal(device.cpu(), expected)
    square = torch.arange(9.0).view(3, 3)
    device = square.to("vulkan")
    device.copy_(device.t())
    assert torch.equal(device.cpu(), square.t())
    device.copy_(device)
    assert torch.equal(device.cpu(), square.t())
    bytes_ = torch.arange(16, dtype=torch.int32).to("vulkan")
    bytes_.view(torch.float32)[:8].copy_(bytes_[4:12])
    assert bytes_.view(torch.float32)[:8].cpu().tolist() == list(range(4, 12))


def test_destination_with_itself_several_times() -> None:
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.zeros(1, 3, device="vulkan").expand(2, 3).copy_(torch.ones(2, 3))


@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX], ids=str)
def test_fill(dtype: torch.dtype) -> None:
    for shape, view in (
        ((5,), lambda t: t),
        ((3, 5), lambda t: t[:, 1:4:2]),
        ((64,), lambda t: t[3:]),
        ((2, 0), lambda t: t),
    ):
        host = torch.ones(shape, dtype=dtype)
        device = host.to("vulkan")
        value = 1 - 2j if dtype.is_complex else 3
        view(host).fill_(value)
        view(device).fill_(value)
        assert same(device.cpu(), host)
        view(host).zero_()
        view(device).zero_()
        assert same(device.cpu(), host)
        view(device).fill_(torch.ones((), dtype=dtype))
        view(host).fill_(1)
        assert same(device.cpu(), host)


def test_fill_from_a_device_scalar_does_not_synchronise() -> None:
    scalar = torch.tensor(4.0, device="vulkan")
    target = torch.zeros(3, 3, device="vulkan")
    before = stats.counters.d2h_bytes
    target.fill_(scalar)
    target[0] = scalar
    assert stats.counters.d2h_bytes == before
    assert target.sum().item() == 36
    with pytest.raises(RuntimeError, match="0-dimensional"):
        target.fill_(torch.ones(3, device="vulkan"))


def test_fill_out_of_range() -> None:
    with pytest.raises(RuntimeError, match="overflow"):
        torch.zeros(2, dtype=torch.uint8, device="vulkan").fill_(300)


def test_item() -> None:
    assert torch.tensor(3.5, device="vulkan").item() == 3.5
    assert torch.tensor([[7]], device="vulkan").item() == 7
    assert int(torch.tensor(2**40, device="vulkan")) == 2**40
    assert torch.tensor(True, device="vulkan").item() is True
    assert torch.tensor(1 + 2j, device="vulkan").item() == 1 + 2j
    assert torch.arange(5, device="vulkan")[3].item() == 3
    assert torch.tensor([1.0, 2.0], device="vulkan").tolist() == [1.0, 2.0]
    assert bool(torch.tensor(0, device="vulkan")) is False


def test_only_the_bytes_needed_move() -> None:
    big = torch.zeros(1 << 20, device="vulkan")
    before = stats.counters.d2h_bytes
    big[12345].item()
    assert stats.counters.d2h_bytes - before == 4
    before = stats.counters.h2d_bytes
    big[:10].copy_(torch.ones(10))
    assert stats.counters.h2d_bytes - before == 40


def test_contiguous_copies_need_no_kernel() -> None:
    source = torch.randn(1000).to("vulkan")
    before = stats.counters.dispatches
    source.clone()
    torch.zeros(1000, device="vulkan")
    assert stats.counters.dispatches == before


def test_kernels_are_shared() -> None:
    torch.zeros(7, 9, device="vulkan").t().contiguous()
    before = stats.counters.kernels_compiled
    for n in range(2, 12):
        torch.zeros(n, n + 1, device="vulkan").t().contiguous()
    assert stats.counters.kernels_compiled == before


@pytest.mark.parametrize("n", [1, 3, 127, 128, 129, 255, 257, 65536 * 256 + 1])
def test_odd_sizes(n: int) -> None:
    source = torch.empty(n, dtype=torch.uint8, device="vulkan").fill_(200)
    source[-1] = 7
    converted = source.to(torch.int16)
    assert converted[-1].item() == 7
    assert converted[0].item() == (200 if n > 1 else 7)
    assert converted[n // 2].item() == (200 if n > 1 else 7)


def test_split_walks_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from vkinductor.device import strides

    monkeypatch.setattr(strides, "MAX_INDEX", 50)
    host = torch.arange(240).view(8, 5, 6)
    device = host.to("vulkan")
    assert torch.equal(device.permute(2, 0, 1).to(torch.float32).cpu(), host.permute(2, 0, 1).float())
    device[:, ::2].fill_(9)
    host[:, ::2].fill_(9)
    assert torch.equal(device.cpu(), host)


def test_device_without_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    real = strided.convertible
    monkeypatch.setattr(
        strided, "convertible", lambda device, *dtypes: torch.float64 not in dtypes and real(device, *dtypes)
    )
    host = torch.randn(4, 6, dtype=torch.float64)
    device = host.to("vulkan")
    assert torch.equal(device.t().contiguous().cpu(), host.t())
    assert torch.equal(device.t().float().cpu(), host.t().float())
    assert torch.equal(host.float().to("vulkan").double().cpu(), host.float().double())
    assert torch.equal(torch.complex(host, host).to("vulkan").conj().resolve_conj().cpu(), torch.complex(host, -host))


def test_to_with_everything() -> None:
    host = torch.randn(2, 3, 4, 5)
    moved = host.to("vulkan", torch.float16, memory_format=torch.channels_last, non_blocking=True, copy=True)
    assert moved.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(moved.cpu(), host.half())
    assert moved.to(torch.float16) is moved
    assert moved.to("cpu", torch.float64).dtype is torch.float64


def test_helpers() -> None:
    host = torch.randn(3, 4).t()
    device = copies.to_device(host)
    assert device.stride() == host.stride()
    assert torch.equal(copies.to_host(device), host)
    assert copies.to_host(device).stride() == host.stride()


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match="to_dense"):
        torch.eye(3).to_sparse().to("vulkan")
    with pytest.raises(UnsupportedError, match="to_dense"):
        torch.zeros(3, 3, device="vulkan").copy_(torch.eye(3).to_sparse())
    with pytest.raises(UnsupportedError, match="to_dense"):
        torch.eye(3).to_sparse_csr().to("vulkan")
    assert torch.eye(3).to_sparse_csr().to(torch.float64).to_dense().dtype is torch.float64
    with pytest.raises(RuntimeError):
        torch.zeros(3, device="vulkan").copy_(torch.zeros(3, device="meta"))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_quantized_is_refused() -> None:
    quantized = torch.quantize_per_tensor(torch.eye(2), 0.1, 0, torch.qint8)
    with pytest.raises(UnsupportedError, match="dequantize"):
        quantized.to("vulkan")
    with pytest.raises(UnsupportedError, match="dequantize"):
        torch.zeros(2, 2, device="vulkan").copy_(quantized)


def test_alignment_of_views() -> None:
    # Widened moves must look at the address as well as at the strides.
    for offset in range(5):
        host = torch.arange(100, dtype=torch.uint8)
        device = host.to("vulkan")
        a, b = host[offset : offset + 64].view(4, 16)[:, :8], device[offset : offset + 64].view(4, 16)[:, :8]
        assert torch.equal(b.contiguous().cpu(), a)
        device[offset : offset + 64].view(4, 16)[:, 8:].copy_(b)
        host[offset : offset + 64].view(4, 16)[:, 8:].copy_(a)
        assert torch.equal(device.cpu(), host)
    assert registry.open().stream is not None
