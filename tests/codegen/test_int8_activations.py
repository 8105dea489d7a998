"""Rows of 8 bits against weights in blocks: exact integers, the stated bound, edges; x in shared memory as floats."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiled import compiled, dispatches, on_device, same
from quantized_blocks import BY_NAME, SCALES, blocks

from vkinductor.codegen.quantized.staged import StagedTile, forced
from vkinductor.codegen.quantized.units import unit
from vkinductor.device import fused_linear as operator
from vkinductor.device.fused_linear import fused_linear
from vkinductor.device.int8_activations import bound, in_bytes
from vkinductor.device.quantized import dequantize_reference, quantized_linear

pytest.importorskip("gguf")

NAMES = tuple(name for name, entry in BY_NAME.items() if unit(entry.number) is not None)
FLOATS = tuple(name for name in NAMES if unit(BY_NAME[name].number).floats)  # type: ignore[union-attr]
INT8 = {"int8_activations": True}


def number(name: str) -> int:
    return BY_NAME[name].number


def whole(name: str, rows: int, columns: int) -> torch.Tensor:
    """Rows of blocks whose scales are powers of two, so that all sums of integers are exact in float32."""
    packed = blocks(name, rows, columns)
    data = packed.view(rows, -1, BY_NAME[name].nbytes)
    for place in SCALES[name]:
        data[:, :, place : place + 2] = torch.tensor([0.25], dtype=torch.float16).view(torch.uint8)
    return packed


def products(names: tuple[str, ...]) -> Any:
    return lambda x, *weights: [quantized_linear(x, w, number(n)) for n, w in zip(names, weights, strict=True)]


def integers(rows: int, columns: int) -> torch.Tensor:
    """What bytes hold as it is: 127 in each block."""
    x = torch.randint(-127, 128, (rows, columns)).float()
    x[:, ::32] = 127
    return x


@pytest.mark.parametrize("staged", [False, True])
def test_sums_of_integers_are_exact(staged: bool) -> None:
    """Bit for bit, of every format; where words go through shared memory, of each alignment."""
    names = ("Q4_0", "Q4_K", "Q6_K") if staged else NAMES
    x, weights = integers(1, 768), [whole(name, 3, 768) for name in names]
    with forced(StagedTile(16, 16, 1, staged, True)):
        results = compiled(products(names))(*on_device([x, *weights]))
    for name, w, y in zip(names, weights, results, strict=True):
        want = x.double() @ dequantize_reference(w, number(name)).double().T
        assert torch.equal(y.cpu().double(), want), name


@pytest.mark.parametrize("staged", [False, True])
def test_passes_rows_and_teams(staged: bool) -> None:
    """Two passes, of which the second is not of all lanes; more rows than share a read; rows past the edge."""
    x, w = integers(5, 640), whole("Q4_0", 9, 640)
    with forced(StagedTile(16, 8, 2, staged, True)):
        y = compiled(products(("Q4_0",)))(*on_device([x, w]))[0]
    assert torch.equal(y.cpu().double(), x.double() @ dequantize_reference(w, 2).double().T)


def test_the_bound_holds_and_is_near() -> None:
    """Of every format with the tiles that are the default, and an outlier in some blocks."""
    x = torch.randn(1, 512)
    x[0, ::100] *= 50
    weights = [blocks(name, 37, 512) for name in NAMES]
    f = compiled(products(NAMES), options=INT8)
    for name, w, y in zip(NAMES, weights, f(*on_device([x, *weights])), strict=True):
        dense = dequantize_reference(w, number(name)).double()
        error, most = (y.cpu().double() - x.double() @ dense.T).abs(), bound(x, dense)
        rounding = 1e-6 * (x.double().abs() @ dense.abs().T)
        assert (error <= most + rounding).all(), name
        assert error.max() > 1e-3 * most.max(), name
        want = in_bytes(x).double() @ dense.T
        assert ((y.cpu().double() - want).abs() <= rounding).all(), name


def test_norm_gate_biases_and_rows() -> None:
    """What is around the products, for more rows than share a read; x is times the gain before it becomes bytes."""
    k, names = 576, ("Q8_0", "Q8_0")
    x, gain, biases = torch.randn(5, k), torch.rand(k) + 0.5, [torch.randn(19), None]
    weights = [blocks(name, 19, k, seed) for seed, name in enumerate(names)]
    formats = [number(name) for name in names]
    x_, gain_, bias_, *weights_ = on_device([x, gain, biases[0], *weights])
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
    rows = in_bytes(x * (1 + gain)) * scale
    for gate in ("", "silu"):

        def layers(x: Any, gain: Any, bias: Any, *weights: Any, gate: str = gate) -> Any:
            named = {"norm": "rms", "eps": 1e-5, "gain": gain, "plus_one": True}
            return fused_linear(x, weights, formats, [bias, None], gate=gate, **named)

        f = compiled(layers, options=INT8)
        want = operator.reference(rows, weights, formats, biases, gate=gate)
        same(f(x_, gain_, bias_, *weights_), want, rtol=1e-4, atol=1e-4)
        assert dispatches(f, x_, gain_, bias_, *weights_) == 1


def test_weights_of_several_formats_that_share_rows() -> None:
    names, x = ("Q4_K", "Q6_K", "Q4_K"), integers(1, 512)
    weights = [whole(name, 5, 512) for name in names]
    formats = [number(name) for name in names]

    def f(x: Any, *weights: Any) -> Any:
        return fused_linear(x, weights, formats, [None] * 3)

    want = torch.cat([x @ dequantize_reference(w, n).T for w, n in zip(weights, formats, strict=True)], -1)
    same(compiled(f, options=INT8)(*on_device([x, *weights])), want, rtol=1e-6, atol=1e-3)


def test_zeros_and_what_is_no_number() -> None:
    """A block of zeros adds nothing; infinities and NaN of any element stay no numbers in the result."""
    x = torch.zeros(4, 128)
    x[1, 40], x[2, 3], x[3, 100] = 1.0, float("nan"), float("inf")
    w = blocks("Q4_0", 9, 128)
    y = compiled(products(("Q4_0",)), options=INT8)(*on_device([x, w]))[0].cpu()
    assert torch.equal(y[0], torch.zeros(9))
    same(y[1], dequantize_reference(w, 2)[:, 40], rtol=1e-6, atol=1e-7)
    assert not y[2:].isfinite().any()


def test_what_has_no_units_keeps_floats() -> None:
    """Rows of 32 or 96 weights, formats without a function of bytes: as without the option."""
    x, weights = torch.randn(2, 256), [blocks("Q4_0", 9, 96), blocks("Q2_K", 9, 256)]

    def f(x: Any, short: Any, two: Any) -> list[Any]:
        return [quantized_linear(x[:, :96].contiguous(), short, 2), quantized_linear(x, two, 10)]

    arguments = on_device([x, *weights])
    same(compiled(f, options=INT8)(*arguments), [y.cpu() for y in compiled(f)(*arguments)], rtol=0, atol=0)


def test_floats_in_shared_memory() -> None:
    """Every format that has them."""
    x, weights = torch.randn(1, 768), [blocks(name, 3, 768) for name in FLOATS]
    with forced(StagedTile(16, 16, 1, False, False)):
        results = compiled(products(FLOATS))(*on_device([x, *weights]))
    for name, w, y in zip(FLOATS, weights, results, strict=True):
        dense = dequantize_reference(w, number(name)).double()
        sizes = x.double().abs() @ dense.abs().T
        assert ((y.cpu().double() - x.double() @ dense.T).abs() <= 5e-7 * sizes).all(), name


def test_halves_in_shared_memory() -> None:
    x, w = torch.randn(3, 512).half(), blocks("Q4_0", 9, 512)
    with forced(StagedTile(16, 8, 2, True, False)):
        y = compiled(products(("Q4_0",)))(*on_device([x, w]))[0]
    same(y, (x.float() @ dequantize_reference(w, 2).T).half(), rtol=2e-3, atol=2e-3)
