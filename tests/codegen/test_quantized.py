"""Weights in block formats: as matrices, and as operands of products with few rows, many, and any number of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled, dispatches, on_device, same
from quantized_blocks import BY_NAME, blocks

import vkinductor
from vkinductor.codegen.quantized import gemv, lowering
from vkinductor.codegen.quantized.gemv import QuantizedTile
from vkinductor.device.quantized import dequantize, dequantize_reference, linear_reference, quantized_linear
from vkinductor.runtime import context

pytest.importorskip("gguf")

NAMES = tuple(BY_NAME)
# A product of 512 terms, in units of the sum of the sizes of these.
TOLERANCE = {torch.float32: 5e-7, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def number(name: str) -> int:
    return BY_NAME[name].number


def close(got: torch.Tensor, x: torch.Tensor, w: torch.Tensor, name: str, bias: Any = None) -> None:
    """``got`` against a product in double precision, by the sum of its terms' sizes."""
    weights = dequantize_reference(w, number(name)).double()
    want, sizes = x.double() @ weights.T, x.double().abs() @ weights.abs().T
    if bias is not None:
        want, sizes = want + bias.double(), sizes + bias.double().abs()
    assert got.shape == want.shape
    assert got.dtype == x.dtype
    assert ((got.cpu().double() - want).abs() <= TOLERANCE[x.dtype] * sizes).all(), name


def products(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
    """x times weights in every format."""
    return [quantized_linear(x, w, number(name)) for name, w in zip(NAMES, weights, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_matrices_of_every_format(dtype: torch.dtype) -> None:
    """Float32 to the bit and halves rounded once, of any bytes."""
    names = NAMES if dtype == torch.float32 else ("Q5_1", "Q6_K")
    rng = torch.Generator().manual_seed(0)
    rows = [torch.randint(0, 256, (3, 2 * BY_NAME[n].nbytes), dtype=torch.uint8, generator=rng) for n in names]

    def f(*rows: torch.Tensor) -> list[torch.Tensor]:
        return [dequantize(r, number(name), dtype) for name, r in zip(names, rows, strict=True)]

    want = [dequantize_reference(r, number(name), dtype) for name, r in zip(names, rows, strict=True)]
    same(compiled(f)(*on_device(rows)), want, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_matrices_are_stored_widely(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """As on a GPU."""
    monkeypatch.setattr(lowering, "_WORDS", {})
    w = blocks("Q4_1", 3, 96)
    got = compiled(lambda w: dequantize(w, 3, dtype))(*on_device([w]))
    same(got, dequantize_reference(w, 3, dtype), rtol=0, atol=0)


def test_few_rows_of_every_format() -> None:
    """As on a CPU driver, where that has what it takes."""
    x, weights = torch.randn(3, 512), [blocks(name, 37, 512) for name in NAMES]
    for name, w, y in zip(NAMES, weights, compiled(products)(*on_device([x, *weights])), strict=True):
        close(y, x, w, name)


def test_few_rows_in_teams() -> None:
    """As on a GPU, with edges everywhere: rows of weights, chunks of a pass."""
    x, weights = torch.randn(2, 512), [blocks(name, 37, 512) for name in NAMES]
    with gemv.forced(QuantizedTile(32, 16, 2, 1)):
        results = compiled(products)(*on_device([x, *weights]))
    for name, w, y in zip(NAMES, weights, results, strict=True):
        close(y, x, w, name)


@pytest.mark.parametrize(
    "tile",
    [QuantizedTile(32, 4, 2, 2), QuantizedTile(32, 32, 1, 2), QuantizedTile(32, 8, 2, 3, True, True, True)],
    ids=str,
)
def test_edges_of_teams(tile: QuantizedTile) -> None:
    """N around the outputs of a workgroup; K around a round of all lanes and a pass."""
    a_round = tile.lanes * 16
    a_pass, outputs = a_round * tile.loads, tile.rows * tile.threads // tile.lanes
    ks = sorted({32, max(32, a_round - 32), a_round, a_round + 32, a_pass, a_pass + 32, 2 * a_pass + 96})
    weights = [
        blocks("Q4_1", n, k) for n, k in zip([1, outputs, outputs + 1, 2 * outputs - 1, 7] * 2, ks, strict=False)
    ]

    def f(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
        return [quantized_linear(x[:, : w.shape[1] // 20 * 32].contiguous(), w, 3) for w in weights]

    x = torch.randn(2, max(ks))
    with gemv.forced(tile):
        results = compiled(f)(*on_device([x, *weights]))
    for w, y in zip(weights, results, strict=True):
        close(y, x[:, : w.shape[1] // 20 * 32], w, "Q4_1")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_rows_and_dtypes(dtype: torch.dtype) -> None:
    """The most rows of a kernel for few, one more, and many; with a bias, which is rounded with the sum."""

    def f(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> list[torch.Tensor]:
        return [quantized_linear(x[:m], w, number("Q8_0"), bias) for m in (1, 16, 17, 40)]

    x, w, bias = torch.randn(40, 256).to(dtype), blocks("Q8_0", 19, 256), torch.randn(19).to(dtype)
    for m, y in zip((1, 16, 17, 40), compiled(f)(*on_device([x, w, bias])), strict=True):
        close(y, x[:m], w, "Q8_0", bias)


def test_teams_read_halves_widely() -> None:
    x, w = torch.randn(1, 512).half(), blocks("Q4_K", 21, 512)
    with gemv.forced(QuantizedTile(32, 8, 2, 2)):
        y = compiled(lambda x, w: quantized_linear(x, w, number("Q4_K")))(*on_device([x, w]))
    close(y, x, w, "Q4_K")


@pytest.mark.parametrize("tile", [None, QuantizedTile(32, 8, 2, 1)], ids=["lanes", "teams"])
def test_rows_of_x_that_lie_across(tile: QuantizedTile | None) -> None:
    x, w = torch.randn(64, 3).t(), blocks("Q4_1", 9, 64)
    with gemv.forced(tile) if tile else torch.no_grad():  # type: ignore[attr-defined]
        y = compiled(lambda x, w: quantized_linear(x, w, 3))(*on_device([x, w]))
    close(y, x, w, "Q4_1")


def test_without_subgroup_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuantizedTile, "cluster", lambda self, info: 1)
    x, w = torch.randn(2, 256), blocks("Q6_K", 9, 256)
    with gemv.forced(QuantizedTile(32, 8, 2, 1)):
        y = compiled(lambda x, w: quantized_linear(x, w, number("Q6_K")))(*on_device([x, w]))
    close(y, x, w, "Q6_K")


def test_a_layer_of_smollm2() -> None:
    """Q4_1, 576 to 1536, one token: one dispatch with bias, activation and residual."""
    x, w, bias, other = torch.randn(1, 1, 576), blocks("Q4_1", 1536, 576), torch.randn(1536), torch.randn(1, 1, 1536)

    def f(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return F.silu(quantized_linear(x, w, 3, bias)) + other

    device = on_device([x, w, bias, other])
    g = compiled(f)
    same(g(*device), F.silu(linear_reference(x, w, 3, bias)) + other, rtol=1e-4, atol=1e-4)
    assert dispatches(g, *device) == 1


def test_lengths_that_vary() -> None:
    """Compiled twice for 20 lengths: for one row, and for any number."""
    w = blocks("Q4_K", 33, 256)
    (device,) = on_device([w])
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("vulkan")
    g = torch.compile(lambda x: quantized_linear(x, device, number("Q4_K")), backend=counter)
    for length in (7, 1, 2, 130, *range(15, 30)):
        x = torch.randn(1, length, 256)
        close(g(x.to("vulkan")), x, w, "Q4_K")
    assert counter.frame_count <= 3


def test_rows_of_an_embedding() -> None:
    """Packed rows are gathered, then dequantised; the table may lie anywhere, indices have any strides."""
    table = blocks("Q6_K", 50, 256)
    ids = torch.tensor([[3, 49, 0], [7, 7, 1]]).t()

    def f(ids: torch.Tensor, table: torch.Tensor) -> list[torch.Tensor]:
        number_ = number("Q6_K")
        return [
            dequantize(F.embedding(ids, table), number_, torch.float32),
            dequantize(table[ids], number_, torch.half),
        ]

    device = on_device([ids, table])
    want = [dequantize_reference(table, number("Q6_K"))[ids], dequantize_reference(table, number("Q6_K"))[ids].half()]
    same(compiled(f)(*device), want, rtol=0, atol=0)
    vkinductor.reset_stats()
    same(f(*device), want, rtol=0, atol=0)
    assert not vkinductor.stats()["fallbacks"]


def test_eager() -> None:
    """Through the device's own compiler: any number of rows, other shapes of the same operator, no fallback."""
    vkinductor.reset_stats()
    for name, rows, columns in (("Q4_0", 5, 64), ("Q4_0", 18, 96), ("Q3_K", 7, 256), ("Q4_K", 3, 512)):
        w = blocks(name, rows, columns)
        for size in ((columns,), (1, columns), (2, 3, columns), (20, columns)):
            x = torch.randn(size)
            close(quantized_linear(x.to("vulkan"), w.to("vulkan"), number(name)), x, w, name)
        assert torch.equal(
            dequantize(w.to("vulkan"), number(name), torch.float32).cpu(), dequantize_reference(w, number(name))
        )
    assert not vkinductor.stats()["fallbacks"]


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_rows_that_begin_anywhere(mode: str) -> None:
    """Blocks at an odd address, rows with gaps, columns of a wider row of blocks: copied where a kernel needs it."""
    data = torch.cat([torch.zeros(1, dtype=torch.uint8), blocks("Q5_K", 6, 512).reshape(-1)]).to("vulkan")

    def f(data: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        odd = data[1:].view(6, 352)
        views = [odd, odd[::2], odd[:, 176:], odd.t().contiguous().t()]
        return [quantized_linear(x[..., : v.shape[1] // 176 * 256], v, number("Q5_K")) for v in views]

    x = torch.randn(2, 512)
    results = (f if mode == "eager" else compiled(f))(data, x.to("vulkan"))
    w = data.cpu()[1:].view(6, 352)
    for v, y in zip((w, w[::2], w[:, 176:].contiguous(), w), results, strict=True):
        close(y, x[:, : v.shape[1] // 176 * 256], v, "Q5_K")


@pytest.mark.parametrize("tile", [None, QuantizedTile(32, 8, 2, 1)], ids=["lanes", "teams"])
def test_what_is_not_finite_stays_where_it_is(tile: QuantizedTile | None) -> None:
    """A NaN in x is in its row alone; a scale that is not finite, in its column alone."""
    x, w = torch.randn(3, 64), blocks("Q8_0", 21, 64)
    x[1, 5] = float("nan")
    w[4, 0:2] = torch.tensor([0x00, 0x7C], dtype=torch.uint8)
    w[20, 34:36] = torch.tensor([0x01, 0x7E], dtype=torch.uint8)
    f = compiled(lambda x, w: quantized_linear(x, w, number("Q8_0")))
    if tile is None:
        y = f(*on_device([x, w])).cpu()
    else:
        with gemv.forced(tile):
            y = f(*on_device([x, w])).cpu()
    bad = ~y.isfinite()
    assert bad[1].all()
    assert bad[:, (4, 20)].all()
    bad[1], bad[:, (4, 20)] = False, False
    assert not bad.any()
    good = [n for n in range(21) if n not in (4, 20)]
    close(y[::2, good].contiguous(), x[::2], w[good], "Q8_0")


def test_activations_of_a_wide_range() -> None:
    """Halves up to their largest, times small scales: sums are float32, so nothing overflows on the way."""
    x, w = (torch.randn(2, 256) * 1e4).half(), blocks("Q4_0", 9, 256)
    for tile in (QuantizedTile(32, 8, 2, 1), None):
        with gemv.forced(tile) if tile else torch.no_grad():  # type: ignore[attr-defined]
            torch._dynamo.reset()
            y = compiled(lambda x, w: quantized_linear(x, w, 2))(*on_device([x, w]))
        close(y, x, w, "Q4_0")


def test_the_same_bits_each_time() -> None:
    x, w = torch.randn(1, 512), blocks("Q4_K", 40, 512)
    device = on_device([x, w])
    f = compiled(lambda x, w: quantized_linear(x, w, number("Q4_K")))
    first = f(*device).cpu()
    assert all(torch.equal(f(*device).cpu(), first) for _ in range(20))


def test_nothing() -> None:
    w = blocks("Q4_0", 5, 32)

    def f(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [quantized_linear(x[:0], w, 2), quantized_linear(x, w[:0], 2), dequantize(w[:0], 2, torch.float32)]

    assert [tuple(y.shape) for y in compiled(f)(*on_device([torch.randn(2, 32), w]))] == [(0, 5), (2, 0), (0, 32)]


def test_default_tiles_fit_the_device() -> None:
    info = context.get().info
    for m, n, chunks in ((1, 1, 1), (1, 32000, 512), (16, 4096, 64), (8, 7, 3)):
        for weights in (16, 32):
            assert gemv.tile_of(info, m, n, chunks, weights).fits(info, m)
