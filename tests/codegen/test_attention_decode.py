"""Attention of few queries to many keys: pieces of the keys, and what puts them together."""

from __future__ import annotations

import pytest
import torch
from attention_cases import TOLERANCES, check, heads, sdpa, whole
from compiled import compiled, dispatches, on_device, same

import vkinductor
from vkinductor.codegen.attention.decode import TILES, DecodeTile
from vkinductor.codegen.attention.decode_matrices import MatrixTile
from vkinductor.runtime.deviceinfo import DeviceInfo, Limits

SMALL = DecodeTile(threads=32, each=1)
ROWS = DecodeTile(threads=32, each=1, loads=4)
MATRICES = MatrixTile(subgroups=2, block=16, chunk=64, emulated=8)
TILE = pytest.mark.parametrize("tile", [SMALL, ROWS], ids=str)
KIND = pytest.mark.parametrize(
    ("tile", "dtype"), [(SMALL, torch.float32), (ROWS, torch.float32), (MATRICES, torch.float16)], ids=str
)


@pytest.mark.parametrize(
    ("share", "length", "width", "width_v"), [(1, 1, 16, 16), (4, 1, 64, 32), (3, 3, 20, 9), (2, 8, 32, 8)]
)
@pytest.mark.parametrize(("tile", "dtype"), [(SMALL, torch.bfloat16), (DecodeTile(64, 2), torch.float32)], ids=str)
def test_shapes(dtype, tile, share, length, width, width_v):
    q, k, v = heads(2, 2 * share, length, width), heads(2, 2, 77, width), heads(2, 2, 77, width_v)
    with whole(attention_decode=tile):
        check(sdpa, *(x.to(dtype) for x in (q, k, v)))


@pytest.mark.parametrize(
    ("dtype", "share", "length", "width", "width_v"),
    [
        (torch.float16, 1, 1, 16, 16),  # fewer queries than lanes a row
        (torch.bfloat16, 8, 1, 64, 32),  # as many
        (torch.float32, 3, 2, 16, 32),  # more, and a padded number
        (torch.float16, 2, 8, 32, 64),  # two blocks of them
    ],
    ids=str,
)
@pytest.mark.parametrize("tile", [ROWS, DecodeTile(64, 2, 2)], ids=str)
def test_subgroups_that_read_rows(dtype, tile, share, length, width, width_v):
    q, k, v = heads(2, 2 * share, length, width), heads(2, 2, 77, width), heads(2, 2, 77, width_v)
    info = vkinductor.device_info()
    wide = 16 // dtype.itemsize
    assert tile.fits(info, min(8, share * length), width, width_v // wide, width // wide)
    with whole(attention_decode=tile, attention_split=2):
        check(sdpa, *(x.to(dtype) for x in (q, k, v)))


@pytest.mark.parametrize(
    ("dtype", "share", "length", "width", "width_v", "tile"),
    [
        (torch.float16, 1, 1, 16, 16, MATRICES),
        (torch.bfloat16, 8, 1, 64, 32, MATRICES),
        (torch.float16, 5, 2, 48, 96, MATRICES),
        (torch.float16, 3, 8, 32, 64, MATRICES),  # two blocks of queries
        (torch.float16, 4, 1, 64, 64, MatrixTile(1, 32, 128, emulated=8)),  # one piece
        (torch.bfloat16, 4, 1, 128, 128, MatrixTile(3, 16, 48, emulated=8)),
        (torch.float16, 5, 1, 64, 32, MatrixTile(2, 32, 64, emulated=8, turned=True)),
        (torch.bfloat16, 3, 4, 16, 48, MatrixTile(2, 16, 64, emulated=8, turned=True)),  # two blocks of queries
    ],
    ids=str,
)
def test_matrices(dtype, share, length, width, width_v, tile):
    q, k, v = heads(2, 2 * share, length, width), heads(2, 2, 77, width), heads(2, 2, 77, width_v)
    assert tile.fits(vkinductor.device_info(), dtype, width, width_v)
    with whole(attention_decode=tile):
        check(sdpa, *(x.to(dtype) for x in (q, k, v)))


def test_scores_that_grow():
    """A greatest score that a later block surpasses by much."""
    q, k, v = (heads(1, n, s, 16, dtype=torch.float16) for n, s in ((4, 1), (1, 200), (1, 200)))
    q, k = q.abs(), k * torch.linspace(0, 30, 200)[:, None].half()
    with whole(attention_decode=MatrixTile(2, 16, 256, emulated=8)):
        check(sdpa, q, k, v)


@pytest.mark.parametrize("combines", [None, False])
def test_pieces_of_matrices(combines):
    """Two attentions: pieces are put together by who comes last, call after call, or by kernels of their own."""
    q, k, v = (heads(2, n, s, 16, dtype=torch.float16) for n, s in ((4, 1), (2, 100), (2, 100)))

    def f(q, k, v):
        return sdpa(sdpa(q, k, v), k, v)

    with whole(attention_decode=MATRICES, attention_decode_combines=combines):
        run = compiled(f)
        operands = on_device([q, k, v])
        assert dispatches(run, *operands) == (2 if combines is None else 4)
        want = f(*(x.double() for x in (q, k, v)))
        for _ in range(3):
            same(run(*operands), want.half(), **TOLERANCES[torch.float16])


def test_a_single_attention_on_matrices_is_one_dispatch():
    q, k, v = on_device([heads(2, n, s, 16, dtype=torch.float16) for n, s in ((4, 1), (2, 100), (2, 100))])
    with whole(attention_decode=MATRICES):
        assert dispatches(compiled(sdpa), q, k, v) == 1
        check(sdpa, q.cpu(), k.cpu(), v.cpu(), (torch.rand(2, 1, 1, 100) > 0.4))


def test_calls_that_share_no_memory_do_not_wait_for_each_other():
    operands = [[heads(2, n, s, 16, dtype=torch.float16) for n, s in ((4, 1), (2, 100), (2, 100))] for _ in range(3)]
    calls = [on_device(each) for each in operands]
    with whole(attention_decode=MATRICES):
        run = compiled(sdpa, dynamic=False, options={"recording": False})
        for call in calls:
            run(*call)
        vkinductor.synchronize()
        before = vkinductor.stats()["barriers"]
        results = [run(*call) for call in calls]
        assert vkinductor.stats()["barriers"] == before
    for result, each in zip(results, operands, strict=True):
        same(result, sdpa(*(x.double() for x in each)).half(), **TOLERANCES[torch.float16])


@TILE
def test_lengths_of_the_cache_from_1_to_130(tile):
    with whole(attention_decode=tile):
        f = compiled(sdpa)
        g = compiled(sdpa, dynamic=True)
        for keys in range(1, 131):
            q, k, v = heads(1, 4, 1, 16), heads(1, 2, keys, 16), heads(1, 2, keys, 16)
            run = f if keys == 1 else g
            same(run(*on_device([q, k, v])), sdpa(q.double(), k.double(), v.double()).float(), atol=2e-6, rtol=1e-5)


@TILE
def test_kernels(tile):
    q, k, v = on_device([heads(2, 4, 1, 16), heads(2, 2, 100, 16), heads(2, 2, 100, 16)])
    with whole(attention_decode=tile):
        assert dispatches(compiled(sdpa), q, k, v) == 2
        torch._dynamo.reset()
        assert dispatches(compiled(sdpa), q, k[:, :, :30], v[:, :, :30]) == 1


@KIND
def test_masks(tile, dtype):
    q, k, v = (heads(2, n, s, 16, dtype=dtype) for n, s in ((4, 2), (2, 100), (2, 100)))
    seen = torch.rand(2, 1, 2, 100) > 0.4
    seen[0, :, 1] = False  # a row that sees nothing
    seen[1, :, :, 30:] = False  # pieces that nobody sees
    with whole(attention_decode=tile):
        result = check(sdpa, q, k, v, seen)
        assert (result[0, :, 1] == 0).all()
        check(sdpa, q, k, v, torch.randn(4, 1, 100).to(dtype))
        check(lambda q, k, v: sdpa(q, k, v, is_causal=True), q, k, v)


@KIND
def test_what_nobody_sees_is_not_read(tile, dtype):
    """A cache longer than its contents may hold anything behind them."""
    q, k, v = (heads(1, 2, s, 16, dtype=dtype) for s in (1, 50, 50))
    seen = torch.arange(50) < 20
    want = sdpa(q, k, v, seen[None, None, None])
    k[:, :, 20:] = float("nan")
    v[:, :, 20:] = float("nan")
    with whole(attention_decode=tile):
        same(compiled(sdpa)(*on_device([q, k, v, seen[None, None, None]])), want, **TOLERANCES[dtype])


def test_caches_laid_out_by_position():
    q, k, v = heads(2, 4, 1, 16), *(torch.randn(2, 60, 2, 16).transpose(1, 2) for _ in range(2))
    with whole(attention_decode=SMALL):
        check(sdpa, q, k, v)
        assert dispatches(compiled(sdpa), *on_device([q, k, v])) == 2


def test_eager():
    q, k, v = heads(2, 4, 1, 16), heads(2, 2, 70, 16), heads(2, 2, 70, 16)
    with whole(attention_decode=SMALL):
        same(sdpa(*on_device([q, k, v])), sdpa(q, k, v))


def test_some_tile_fits_the_least_device():
    assert any(tile.fits(DeviceInfo(0, "least", "discrete", limits=Limits()), 8, 128, 16) for tile in TILES)
