"""The attention of a decode step in one dispatch, against the operator's meaning in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_cases import TOLERANCES
from compiled import compiled, dispatches, on_device, same

import vkinductor
from vkinductor.codegen import heuristics
from vkinductor.codegen.attention.step_tiles import Shape, StepTile, step_tile
from vkinductor.device.attention_step import attention_step, attention_step_composed
from vkinductor.runtime import context
from vkinductor.runtime.deviceinfo import DeviceInfo, Features, Limits
from vkinductor.runtime.errors import UnsupportedError

# Pieces of 4 keys and more, so that small caches have several.
TILE = StepTile(threads=16, unroll=1, pieces=4, early=True, ahead=1, lent=True)
CHUNK = 16


class Case:
    """Operands of one step on the CPU."""

    def __init__(
        self, dtype: Any = torch.float32, batch: int = 1, heads: int = 4, groups: int = 2, length: int = 1,
        width: int = 16, width_v: int = 0, keys: int = 64, rotary: int | None = None, position: int = 20,
    ) -> None:  # fmt: skip
        def random(*sizes: int) -> torch.Tensor:
            return torch.randn(sizes).to(dtype)

        width_v = width_v or width
        rotary = width if rotary is None else rotary
        # As projections leave them: heads side by side.
        self.new = [random(batch, length, n, w).transpose(1, 2)
                    for n, w in ((heads, width), (groups, width), (groups, width_v))]  # fmt: skip
        self.caches = [random(batch, groups, keys, w) for w in (width, width_v)]
        angles = (position + torch.arange(length))[:, None] * torch.rand(rotary // 2)
        angles = torch.cat((angles, angles), -1)[None]
        self.tables = [angles.cos().to(dtype), angles.sin().to(dtype)] if rotary else [None, None]
        self.position = torch.tensor([position])
        self.rest: dict[str, Any] = {}
        self.scale = width**-0.5

    def arguments(self, caches: list[torch.Tensor]) -> list[Any]:
        """The operator's, in order."""
        optional = [self.rest.get(n) for n in ("q_weight", "k_weight", "mask", "start", "slopes")]
        return [*self.new, *caches, self.position, *self.tables, *optional, self.scale]

    def options(self) -> dict[str, Any]:
        """Those that are no tensors."""
        tensors = ("q_weight", "k_weight", "mask", "start", "slopes")
        return {name: value for name, value in self.rest.items() if name not in tensors}

    def wanted(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The result in double precision, and the caches as the dtype has them."""
        rounded = [c.clone() for c in self.caches]
        attention_step(*self.arguments(rounded), **self.options())
        wide = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
                for x in self.arguments([c.clone() for c in self.caches])]  # fmt: skip
        return attention_step_composed(*wide, **self.options()).to(self.new[0].dtype), rounded


def check(case: Case, tile: StepTile | None = TILE, exact: bool = True, **forced: Any) -> None:
    """One step on the device; its caches have the same bits."""
    want, caches = case.wanted()
    own = on_device(case.caches)
    options = case.options()
    with heuristics.override(attention_step=tile, **forced):
        got = compiled(lambda *a: attention_step(*a, **options), dynamic=False)(*on_device(case.arguments(own)))
    same(got, want, **TOLERANCES[want.dtype])
    same(own, caches, **({"atol": 0, "rtol": 0} if exact else TOLERANCES[want.dtype]))


@pytest.mark.parametrize("position", [0, CHUNK - 1, CHUNK, 62])
def test_edges_of_pieces(position):
    check(Case(position=position, length=2 if position < 60 else 1, batch=2))


@pytest.mark.parametrize(
    ("dtype", "heads", "groups", "length", "width", "width_v", "rotary"),
    [
        (torch.float16, 8, 1, 1, 64, 64, 64),
        (torch.bfloat16, 6, 2, 3, 32, 32, 32),
        (torch.float32, 3, 3, 8, 20, 12, 8),  # rows that are no power of two, part of a head rotated
        (torch.float16, 4, 1, 8, 16, 48, 0),  # several blocks of rows, no rotary
        (torch.bfloat16, 2, 1, 1, 256, 256, 256),
    ],
    ids=str,
)
def test_shapes(dtype, heads, groups, length, width, width_v, rotary):
    check(Case(dtype, 1, heads, groups, length, width, width_v, 40, rotary, position=17))


@pytest.mark.parametrize(
    "tile",
    [
        StepTile(16, 2, 2, rows=2, sides=2, ahead=1),
        StepTile(32, 1, 3, rows=3),  # rows and pieces that are no powers of two
        StepTile(16, 2, 1, rows=1, early=True, ahead=3),
        StepTile(16, 1, 4, rows=2, early=True),
        StepTile(16, 1, 5),
        StepTile(16, 1, 4, solo=51, shuffled=8),
        StepTile(16, 1, 4, rows=2, sides=2, ahead=2, lent=True),
        StepTile(16, 4, 4, rows=4, lent=True),
        StepTile(32, 2, 4, rows=8, lent=True, shuffled=8, early=True),
        StepTile(16, 2, 1, rows=1, early=True, cuts=4, fresh=True),
        StepTile(16, 1, 3, rows=2, cuts=2, fresh=True),
    ],
    ids=str,
)
def test_tiles(tile):
    """Several blocks of queries, sides and pieces; what lies from the position on is not used."""
    case = Case(torch.float16, heads=10, groups=2, width=64, position=50)
    want, caches = case.wanted()
    own = on_device(case.caches)
    for cache in own:
        cache[:, :, 50:] = float("nan")
    with heuristics.override(attention_step=tile):
        got = compiled(attention_step, dynamic=False)(*on_device(case.arguments(own)))
    same(got, want, **TOLERANCES[torch.float16])
    same([c[:, :, :51] for c in own], [c[:, :, :51] for c in caches], atol=0, rtol=0)


def test_two_dispatches():
    """Pieces that a second kernel puts together."""
    case = Case(torch.float16, heads=4, groups=1, width=32, position=50)
    check(case, attention_step_combines=False)
    check(case, StepTile(16, 1, 4, rows=2, cuts=2), attention_step_combines=False)


def test_parts_of_values_that_are_not_as_wide_as_keys():
    """Heads of 48 and 80 elements in lines of lanes that some words do not reach; several new keys."""
    for width, width_v, cuts in ((48, 48, 2), (48, 80, 4), (64, 24, 2)):
        case = Case(torch.float16, 2, 4, 2, 2, width, width_v, 40, width, position=17)
        check(case, StepTile(16, 1, 2, rows=2, cuts=cuts, fresh=True))
        case = Case(torch.float16, 2, 4, 2, 1, width, width_v, 40, width, position=39)
        check(case, StepTile(16, 1, 1, rows=2, early=True, cuts=cuts, fresh=True))


def test_last_keys_of_the_cache_and_the_default_tile():
    check(Case(length=3, position=61), tile=None)


@pytest.mark.parametrize("causal", [True, False])
def test_masks(causal):
    case = Case(batch=2, length=3, position=30)
    seen = torch.rand(2, 1, 3, 64) > 0.4
    seen[1, :, 1] = False  # a row that sees nothing
    case.rest = {"mask": seen, "causal": causal}
    check(case)
    case.rest["mask"] = torch.randn(1, 4, 1, 64)
    check(case)


def test_windows_padding_softcap_and_slopes():
    case = Case(batch=2, length=3, position=40)
    case.rest = {"window": 7, "start": torch.tensor([3, 38]), "softcap": 5.0, "slopes": torch.rand(4)}
    check(case)


def test_norms_of_heads():
    for offset in (0.0, 1.0):
        case = Case(width=32)
        case.rest = {"q_weight": torch.rand(32), "k_weight": torch.rand(32), "eps": 1e-6, "weight_offset": offset}
        check(case, exact=False)  # sums in another order


def test_neighbours_as_pairs():
    case = Case(width=32, rotary=16)
    case.rest = {"interleaved": True}
    check(case)


def test_positions_of_their_own():
    case = Case(batch=2, rotary=0)
    case.position = torch.tensor([5, 50])
    check(case)


def test_what_nobody_sees_is_not_read():
    case = Case(position=20)
    want = case.wanted()[0]
    own = on_device(case.caches)
    for cache in own:
        cache[:, :, 21:] = float("nan")
    with heuristics.override(attention_step=TILE):
        got = compiled(attention_step, dynamic=False)(*on_device(case.arguments(own)))
    same(got, want, **TOLERANCES[torch.float32])


def test_steps_overwrite_the_cache_and_repeat_bit_by_bit():
    """llama.cpp#26744: stale keys; executorch#22327: one of many runs wrong. Counters that were left would show."""
    case = Case(torch.float16, heads=8, groups=2, position=9)
    f = compiled(attention_step, dynamic=False)
    own, caches = on_device(case.caches), case.caches
    with heuristics.override(attention_step=TILE):
        for position in (9, 10, 11, 9):
            case.position = torch.tensor([position])
            case.new = [torch.randn_like(x) for x in case.new]
            want, caches = case.wanted()
            case.caches = caches
            arguments = on_device(case.arguments(own))
            got = f(*arguments)
            same(got, want, **TOLERANCES[torch.float16])
            same(own, caches, atol=0, rtol=0)
        first = f(*arguments).cpu()
        assert all(torch.equal(f(*arguments).cpu(), first) for _ in range(100))


def test_steps_share_counters():
    """One dispatch a step: counters are a constant of the graph, and each step leaves them zero."""
    cases = [Case(position=p) for p in (50, 33, 62)]

    def steps(*arguments: Any) -> list[torch.Tensor]:
        each = len(arguments) // 3
        return [attention_step(*arguments[i * each : (i + 1) * each]) for i in range(3)]

    arguments = [a for case in cases for a in on_device(case.arguments(on_device(case.caches)))]
    want = [case.wanted()[0] for case in cases]
    for tile in (TILE, StepTile(16, 1, 1)):
        torch._dynamo.reset()
        f = compiled(steps, dynamic=False)
        with heuristics.override(attention_step=tile):
            assert dispatches(f, *arguments) == 3
            same(f(*arguments), want)


def test_eager():
    case = Case(rotary=0)
    want, caches = case.wanted()
    own = on_device(case.caches)
    same(attention_step(*on_device(case.arguments(own))), want)
    same(own, caches)


def test_what_it_does_not_serve():
    case = Case(length=9, position=3)
    with pytest.raises(UnsupportedError, match="at most 8 queries"):
        compiled(attention_step, dynamic=False)(*on_device(case.arguments(on_device(case.caches))))


def test_cuts():
    """8 queries of a head of 64 halves, subgroups of 32: 8 lanes a row."""
    shape = Shape(8, 1, 64, 64, 8, 8)
    cut = StepTile(512, 4, 16, rows=4, sides=2).cut(shape, 32)
    assert (cut.lanes, cut.teams, cut.crews, cut.lines, cut.granule) == (8, 4, 8, 32, 128)
    assert (cut.rows, cut.all_rows, cut.blocks, cut.stride) == (4, 8, 1, 8 * 66)
    # Sides that would have no queries are given up, rows that registers do not hold halved.
    assert StepTile(512, 4, 16, rows=4, sides=4).cut(shape, 32).sides == 2
    assert StepTile(256, 1, 1).cut(Shape(8, 1, 256, 256, 4, 4), 8).rows == 2


def test_tiles_of_a_gpu():
    """A workgroup for each multiprocessor: few keys whole, many in pieces; more queries in each of many sequences."""
    limits = Limits(
        max_workgroup_size=(1024, 1024, 64), max_workgroup_invocations=1024, max_shared_memory=49152,
        subgroup_size=32, subgroup_size_min=32, subgroup_size_max=32,
    )  # fmt: skip
    info = DeviceInfo(0, "gpu", "discrete", limits=limits, features=Features(subgroup_shuffle=True))
    shape = Shape(8, 1, 64, 64, 8, 8)
    for pairs, keys in ((4, 512), (4, 1024), (4, 8192), (32, 8192), (512, 8192)):
        tile = step_tile(info, shape, pairs, keys)
        assert tile is not None
        workgroups = pairs * tile.cut(shape, 32).blocks * tile.pieces
        assert workgroups in ((32, 64) if keys == 512 else (128,) if pairs < 512 else (512,)), tile
        assert (tile.pieces == 1) == (keys == 512 or pairs == 512)
    # Few workgroups share the values, as SmolLM2-135M's nine do.
    few = step_tile(info, Shape(3, 1, 64, 64, 8, 8), 3, 512)
    assert few is not None
    assert (few.cuts, few.cut(Shape(3, 1, 64, 64, 8, 8), 32).blocks) == (4, 12)


def test_some_tile_fits_each_head():
    for width, itemsize in ((16, 2), (64, 2), (128, 4), (256, 4)):
        shape = Shape(32, 8, width, width, 16 // itemsize, 16 // itemsize)
        assert step_tile(context.get().info, shape, 1, 4096) is not None
    assert step_tile(DeviceInfo(0, "least", "discrete", limits=Limits()), shape, 1, 4096) is None
    assert vkinductor.is_available()
