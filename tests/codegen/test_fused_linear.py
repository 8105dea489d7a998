"""vkinductor.fused_linear: norms, gates, biases, several weights; rows, dtypes, edges of tiles; forced as on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cards import card
from compiled import compiled, dispatches, name_of, on_device, same

from vkinductor.codegen.fused.tiles import FusedTile, forced, tile_of
from vkinductor.device import fused_linear as operator
from vkinductor.device.fused_linear import DENSE, fused_linear
from vkinductor.device.quantized import FORMATS

TOLERANCE = {
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1e-2},
    torch.float32: {"rtol": 1e-5, "atol": 2e-5},
}
# Teams smaller than, equal to and larger than a subgroup of 8; a single invocation.
TILES = (FusedTile(32, 4, 2, 2), FusedTile(16, 8, 4, 1), FusedTile(64, 64, 2, 2), FusedTile(32, 1, 1, 2))
# Against latency: whole rows in a pass and not, a team in a subgroup and of several, one row and several.
EAGER = tuple(
    FusedTile(*numbers, flat=True, own=True, direct=True)
    for numbers in ((32, 4, 2, 2), (16, 8, 1, 2), (64, 64, 2, 2), (32, 8, 4, 3), (32, 1, 1, 2))
)


def exact(x: torch.Tensor, weights: Any, formats: Any, biases: Any, **named: Any) -> torch.Tensor:
    """The operator in float64, dense weights only."""
    rows = x.double()
    gain, shift = named.get("gain"), named.get("shift")
    if named.get("norm") == "layer":
        rows = rows - rows.mean(-1, keepdim=True)
    if named.get("norm"):
        rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + named["eps"])
    if gain is not None:
        rows = rows * (gain.double() + named.get("plus_one", False))
    if shift is not None:
        rows = rows + shift.double()
    out = [rows @ w.double().T + (0 if b is None else b.double()) for w, b in zip(weights, biases, strict=True)]
    if not named.get("gate"):
        return torch.cat(out, -1).to(x.dtype)
    first, second = out if len(out) == 2 else out[0].chunk(2, -1)
    return (operator.GATES[named["gate"]](first) * second).to(x.dtype)


def hold(x: torch.Tensor, weights: list[torch.Tensor], biases: Any = None, tile: Any = None, **named: Any) -> None:
    """One dispatch gives what float64 does."""
    biases = [None] * len(weights) if biases is None else biases
    formats = [DENSE] * len(weights)
    want = exact(x, weights, formats, biases, **named)
    x_, gain, shift, *rest = on_device([x, named.pop("gain", None), named.pop("shift", None), *weights, *biases])
    weights_, biases_ = rest[: len(weights)], rest[len(weights) :]

    @compiled
    def f(x: Any, gain: Any, shift: Any, weights: Any, biases: Any) -> Any:
        return fused_linear(x, weights, formats, biases, gain=gain, shift=shift, **named)

    with forced(tile):
        same(f(x_, gain, shift, weights_, biases_), want, **TOLERANCE[x.dtype])
    assert dispatches(f, x_, gain, shift, weights_, biases_) == 1


def rand(*size: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*size) * scale).to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=name_of)
def test_norm_and_weights_of_different_sizes(dtype):
    k = 128
    weights = [rand(n, k, dtype=dtype, scale=k**-0.5) for n in (37, 16, 5)]
    hold(rand(3, k, dtype=dtype), weights, norm="rms", eps=1e-5, gain=rand(k, dtype=dtype))


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tiles(tile):
    k, dtype = 88, torch.float16
    weights = [rand(n, k, dtype=dtype, scale=k**-0.5) for n in (19, 8)]
    hold(rand(2, k, dtype=dtype), weights, [rand(19, dtype=dtype), None], tile, norm="rms", eps=1e-6)


@pytest.mark.parametrize("tile", EAGER, ids=str)
@pytest.mark.parametrize(("m", "k"), [(1, 88), (2, 34), (3, 96)])
def test_tiles_against_latency(tile, m, k):
    """Bit by bit what the same tile gives without; K around a pass; what the stores read comes early."""
    dtype = torch.float16
    values = [rand(m, k, dtype=dtype), *(rand(n, k, dtype=dtype, scale=k**-0.5) for n in (19, 19))]
    values += [rand(k, dtype=dtype), rand(19, dtype=dtype), rand(m, 19, dtype=dtype), rand(m, 38, dtype=dtype)]
    plain = FusedTile(tile.threads, tile.lanes, tile.rows, tile.loads)
    found = []
    for each in (tile, plain):

        @compiled
        def f(x: Any, a: Any, b: Any, gain: Any, bias: Any, r: Any, r2: Any) -> Any:
            gated = fused_linear(x, [a, b], [DENSE] * 2, [None, bias], "silu", "rms", 1e-5, gain) + r
            both = fused_linear(x, [a, b], [DENSE] * 2, [bias, None], "", "rms", 1e-5, gain) * r2
            return gated, both, fused_linear(x, [a], [DENSE], [None], "", "layer", 1e-5, gain, gain) + r

        with forced(each):
            found.append([y.cpu() for y in f(*on_device(values))])
    for got, want in zip(*found, strict=True):
        assert torch.equal(got, want)
    x, a, b, gain, bias, r, _ = values
    want = exact(x, [a, b], [DENSE] * 2, [None, bias], gate="silu", norm="rms", eps=1e-5, gain=gain) + r
    torch.testing.assert_close(found[0][0], want, **TOLERANCE[dtype])


@pytest.mark.parametrize("gate", operator.GATES)
def test_gates(gate):
    k = 64
    weights = [rand(21, k, scale=k**-0.5) for _ in range(2)]
    hold(rand(1, k), weights, [None, rand(21)], gate=gate, norm="rms", eps=1e-6, gain=rand(k), plus_one=True)


def test_a_gate_of_the_halves_of_one_weight():
    k, dtype = 64, torch.bfloat16
    hold(rand(8, k, dtype=dtype), [rand(42, k, dtype=dtype, scale=k**-0.5)], [rand(42, dtype=dtype)], gate="silu")


@pytest.mark.parametrize("tile", [TILES[0], TILES[3]], ids=str)
def test_layer_norm_far_from_zero(tile):
    k = 200
    weights = [rand(9, k, scale=k**-0.5), rand(4, k, scale=k**-0.5)]
    x = rand(3, k) + 100
    hold(x, weights, [rand(9), rand(4)], tile, norm="layer", eps=1e-5, gain=rand(k), shift=rand(k))


def test_gains_keep_their_dtype():
    k, dtype = 64, torch.float16
    hold(rand(1, k, dtype=dtype), [rand(9, k, dtype=dtype, scale=k**-0.5)], norm="rms", eps=1e-6, gain=rand(k))


def test_columns_that_no_wide_load_divides():
    for k in (33, 34, 100):
        hold(rand(3, k, dtype=torch.float16), [rand(7, k, dtype=torch.float16, scale=0.2)] * 2, norm="rms", eps=1e-5)


def test_squares_beyond_float16():
    k = 4096
    x, w = torch.full((1, k), 300.0, dtype=torch.float16), rand(5, k, dtype=torch.float16, scale=k**-0.5)
    hold(x, [w, w], norm="rms", eps=1e-5, gain=torch.ones(k, dtype=torch.float16))


def test_more_rows_than_share_a_read():
    k = 32
    hold(rand(19, k), [rand(6, k, scale=0.2), rand(3, k, scale=0.2)], norm="rms", eps=1e-5)


def test_what_follows_is_fused():
    k = 64
    x, w, residual = on_device([rand(1, k), rand(12, k, scale=0.1), rand(1, 12)])

    @compiled
    def f(x: Any, w: Any, residual: Any) -> Any:
        return (residual + fused_linear(x, [w], [DENSE], [None], norm="rms", eps=1e-5)).half()

    want = residual.cpu() + operator.reference(x.cpu(), [w.cpu()], [DENSE], [None], norm="rms", eps=1e-5)
    same(f(x, w, residual), want.half(), rtol=1e-3, atol=1e-3)
    assert dispatches(f, x, w, residual) == 1


@pytest.mark.parametrize("names", [("Q4_0", "Q4_0"), ("Q4_K", "Q6_K"), ("Q8_0", "")], ids=str)
def test_blocks(names):
    gguf = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    k, numbers = 512, {f.name: f.number for f in FORMATS.values()}
    weights, formats = [], []
    for n, name in zip((20, 9), names, strict=True):
        dense = rand(n, k, scale=k**-0.5)
        formats.append(numbers.get(name, DENSE))
        if name in ("Q4_0", "Q8_0"):
            dense = torch.from_numpy(gguf.quants.quantize(dense.numpy(), gguf.GGMLQuantizationType(formats[-1])))
        elif name:
            size = FORMATS[formats[-1]].row_bytes(k)
            blocks = numpy.random.default_rng(0).integers(0, 256, (n, size), dtype=numpy.uint8)
            halves = blocks.reshape(n, -1, FORMATS[formats[-1]].nbytes)
            for at in (0, 2) if name == "Q4_K" else (208,):
                halves[:, :, at : at + 2] = numpy.array([0.001], dtype=numpy.float16).view(numpy.uint8)
            dense = torch.from_numpy(blocks)
        weights.append(dense)
    x, gain = rand(3, k), rand(k)
    for named in ({}, {"gate": "silu"}) if names[0] == names[1] else ({},):
        used = [weights[0], weights[0]] if named else weights
        want = operator.reference(x, used, formats, [None, None], norm="rms", eps=1e-5, gain=gain, **named)
        x_, gain_, *used_ = on_device([x, gain, *used])

        @compiled
        def f(x: Any, gain: Any, *used: Any, named: Any = named) -> Any:
            return fused_linear(x, used, formats, [None, None], norm="rms", eps=1e-5, gain=gain, **named)

        same(f(x_, gain_, *used_), want, rtol=1e-4, atol=1e-4)
        assert dispatches(f, x_, gain_, *used_) == 1


def test_tiles_of_a_decode_step_on_a_gpu():
    """What was measured in chains of dispatches: whole rows in a pass where weights are few; not of blocks."""
    gpu = card()
    assert tile_of(gpu, 1, (576, 192, 192), 72, False, True) == FusedTile(256, 128, 1, 1, True, True)
    assert tile_of(gpu, 1, (1536, 1536), 72, True, True) == FusedTile(256, 128, 1, 1, True, True)
    assert tile_of(gpu, 1, (49152,), 72, False, True) == FusedTile(256, 8, 1, 9, True, True, True)
    assert tile_of(gpu, 1, (2048, 256, 256), 256, False, True) == FusedTile(256, 128, 2, 2, True, True)
    assert tile_of(gpu, 1, (5632, 5632), 256, True, True) == FusedTile(256, 256, 2, 1, True, True)
    assert tile_of(gpu, 1, (5632, 5632), 128, True, False) == FusedTile(64, 64, 2, 2, True, True)
    assert not tile_of(gpu, 8, (576, 192, 192), 72, False, True).flat
    sizes = [(n,) * (1 + gated) for n in (1, 31, 576, 4096) for gated in (False, True)]
    for n, m, chunks in ((n, m, chunks) for n in sizes for m in (1, 2, 8) for chunks in (1, 72, 256, 1000)):
        assert tile_of(gpu, m, n, chunks, len(n) > 1, True).holds(gpu, m, len(n) > 1)


def test_eager_and_errors():
    x, w = on_device([rand(2, 16), rand(4, 16)])
    want = operator.reference(x.cpu(), [w.cpu()], [DENSE], [None], gate="relu", norm="layer", eps=1e-5)
    same(fused_linear(x, [w], [DENSE], [None], gate="relu", norm="layer", eps=1e-5), want)
    for wrong in ({"norm": "batch"}, {"gate": "sine"}):
        with pytest.raises(ValueError, match="unknown"):
            fused_linear(x, [w], [DENSE], [None], **wrong)
    with pytest.raises(ValueError, match="one dtype"):
        fused_linear(x, [w.half()], [DENSE], [None])
