"""vkinductor.linear_argmax: places in one dispatch, as torch has them; ties, NaN, rows, formats, edges of tiles."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from compiled import compiled, dispatches, name_of, on_device, same
from quantized_blocks import blocks

from vkinductor.codegen.fused.tiles import FusedTile, forced
from vkinductor.codegen.quantized import staged
from vkinductor.codegen.quantized.staged import StagedTile
from vkinductor.codegen.recording import recordings
from vkinductor.device.fused_linear import DENSE
from vkinductor.device.linear_argmax import linear_argmax, reference
from vkinductor.runtime.replay.persistent import PersistentProgram

# One row of weights a workgroup, so that there are more workgroups than invocations; teams smaller than a subgroup of 8
# and larger, alone in their workgroup or not.
TILES = (FusedTile(8, 8, 1, 1), FusedTile(32, 4, 2, 2), FusedTile(64, 16, 4, 1), FusedTile(32, 1, 1, 2))


def integers(*size: int, dtype: torch.dtype = torch.float32, high: int = 3) -> torch.Tensor:
    """Products and sums of these are exact in any order, and alike often enough."""
    return torch.randint(-high, high + 1, size).to(dtype)


def hold(x: torch.Tensor, weight: torch.Tensor, bias: Any = None, keep: bool = False, **named: Any) -> None:
    """One dispatch gives what torch does, and so do those after it."""
    want = reference(x, weight, DENSE, bias, keep, **named)
    x_, weight_, bias_ = on_device([x, weight, bias])

    @compiled
    def f(x: Any, weight: Any, bias: Any) -> Any:
        return linear_argmax(x, weight, DENSE, bias, keep, **named)

    same(f(x_, weight_, bias_), want)
    for _ in range(3):
        same(f(x_, weight_, bias_)[0], want[0])
    assert dispatches(f, x_, weight_, bias_) == 1


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tiles(tile):
    with forced(tile):
        hold(integers(1, 48), integers(603, 48))
        torch._dynamo.reset()
        half = torch.float16
        hold(integers(3, 48, dtype=half), integers(67, 48, dtype=half), integers(67, dtype=half), keep=True)


def test_each_tile_has_a_workgroup():
    """Of which the last one to come chooses: none takes several in turns, as other linear layers' may."""
    with forced(FusedTile(64, 8, 1, 2, flat=True, turns=3)):
        hold(integers(1, 64), integers(603, 64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=name_of)
def test_rounded_results_are_compared(dtype):
    # Sums of 2 ** 12 + 1 and 2 ** 12 are one half, and of them the first is chosen.
    weight = torch.zeros(40, 8, dtype=dtype)
    weight[11, 0], weight[30, :2] = 1, 1
    x = torch.zeros(2, 8, dtype=dtype)
    x[:, 0], x[1, 1] = 4096, 1
    hold(x, weight)
    assert reference(x, weight, DENSE, None, False)[0].tolist() == [11, 30 if dtype == torch.float32 else 11]


def test_nan_infinities_and_zeros():
    n = 300
    bias = torch.zeros(5, n)
    bias[0, [200, 17, 250]] = math.nan
    bias[0, 3] = math.inf
    bias[1], bias[1, 280] = -math.inf, -3e38
    bias[2] = -math.inf
    bias[3] = torch.where(torch.arange(n) % 2 == 0, -0.0, 0.0)
    bias[4, 299] = -torch.tensor(math.nan)
    f = compiled(lambda x, w, b: linear_argmax(x, w, DENSE, b, False)[0])
    with forced(TILES[1]):
        for row in bias:
            x, weight = torch.zeros(1, 8), torch.zeros(n, 8)
            want = reference(x, weight, DENSE, row, False)[0]
            same(f(*on_device([x, weight, row])), want)


def test_norms_and_what_follows():
    x, weight, gain = integers(2, 64, high=9), integers(300, 64, high=9), torch.rand(64)
    for named in ({"norm": "rms", "eps": 1e-6}, {"norm": "layer", "eps": 1e-5}):

        def f(x: Any, weight: Any, gain: Any, named: Any = named) -> Any:
            place, logits = linear_argmax(x, weight, DENSE, None, True, gain=gain, **named)
            return place[:, None] * 2 + 1, logits

        function = compiled(f)
        given = on_device([x, weight, gain])
        place, logits = function(*given)
        same(logits, f(x, weight, gain)[1], rtol=1e-5, atol=1e-4)
        same(place, logits.cpu().argmax(-1, keepdim=True) * 2 + 1)
        assert dispatches(function, *given) == 1


def test_other_numbers_of_rows():
    f = compiled(lambda x, w: linear_argmax(x, w, DENSE, None, False)[0])
    for rows in (0, 7, 8, 9):
        torch._dynamo.reset()
        x, w = integers(rows, 16), integers(50, 16)
        same(f(*on_device([x, w])), reference(x, w, DENSE, None, False)[0])


@pytest.mark.parametrize("tile", [None, StagedTile(32, 16, 2, True, False), StagedTile(64, 8, 2, False, True)], ids=str)
def test_blocks(tile):
    k, number = 256, 2
    x, gain, weight = integers(2, k), torch.rand(k), blocks("Q4_0", 203, k)

    def f(x: Any, gain: Any, weight: Any) -> Any:
        return linear_argmax(x, weight, number, None, True, norm="rms", eps=1e-5, gain=gain)

    function, given = compiled(f), on_device([x, gain, weight])
    with staged.forced(tile):
        place, logits = function(*given)
        for _ in range(2):
            same(function(*given), (place, logits))
    same(place, logits.cpu().argmax(-1))
    same(logits, f(x, gain, weight)[1], rtol=1e-2 if tile is not None and tile.bytes else 1e-4, atol=2e-2)
    assert dispatches(function, *given) == 1


@pytest.mark.usefixtures("one_kernel")
def test_as_one_kernel_with_others():
    def f(x: Any, weight: Any) -> Any:
        places = linear_argmax(x, weight, DENSE, None, False)[0]
        return linear_argmax(weight[places], weight, DENSE, None, False)[0], places

    x, weight = integers(2, 32), integers(300, 32)
    before = recordings()
    function, given = compiled(f, options={"persistent": True}), on_device([x, weight])
    for _ in range(6):
        results = function(*given)
        same(results, f(x, weight))
        for result in results:
            result.fill_(-1)  # what the next call does not write is not right by chance
        del results, result
    (made,) = (r for r in recordings() if r not in before)
    assert isinstance(made.program, PersistentProgram)
    assert len(made.launches) == 3  # a row of the table between the two
