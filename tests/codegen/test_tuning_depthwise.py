"""Tuning of depthwise convolutions: a card's tiles, measuring, and that a graph takes what was chosen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cards
import pytest
import torch
import torch.nn.functional as F
from compiled import on_device, same

import vkinductor
from vkinductor.codegen import depthwise, heuristics
from vkinductor.codegen.depthwise import LastTile, Problem
from vkinductor.codegen.tuning.depthwise import DEPTHWISE, problem_of
from vkinductor.codegen.tuning.results import results
from vkinductor.codegen.tuning.tuner import tune
from vkinductor.device.registry import registry

TILES = [LastTile(2, 2, 8), LastTile(4, 1, 16, unrolled=3)]


@pytest.fixture
def two_tiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Two candidates with channels last, and an empty store."""
    from vkinductor.runtime.store import DiskStore

    device = registry.open().runtime
    monkeypatch.setitem(device.__dict__, "store", DiskStore(tmp_path / "store"))
    candidates = depthwise.candidates
    monkeypatch.setattr(
        depthwise, "candidates", lambda info, problem: TILES if problem.last else candidates(info, problem)
    )
    registry.tuning = None
    with heuristics.override(convolution_products=1):
        yield
    registry.tuning = None


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_every_candidate_is_right(two_tiles: None, dtype: torch.dtype) -> None:
    found = tune(DEPTHWISE, problem_of(2, 12, 7, 6, 3, 2, 1, dtype), seconds=60)
    assert found is not None
    assert {(row.status, row.detail) for row in found.rows} == {("ok", "")}
    assert [row.label for row in found.rows] == [DEPTHWISE.label(tile) for tile in TILES]


def test_a_wrong_result_is_seen() -> None:
    operation = DEPTHWISE.operation(problem_of(2, 8, 5, 5, 3, 1, 1, torch.float16))
    values = [torch.randn(o.size).to(o.dtype) for o in operation.operands]
    right = F.conv2d(values[0].double(), values[1].double(), padding=1, groups=8).half()
    assert operation.check is not None
    assert operation.check(values, right) is None
    wrong = right.clone()
    wrong[1, -1, 4, 4] += 1
    assert "of image 1" in str(operation.check(values, wrong))


@pytest.mark.parametrize("last", [True, False])
def test_max_autotune_takes_what_it_finds(two_tiles: None, last: bool) -> None:
    order = torch.channels_last if last else torch.contiguous_format
    x, w = torch.randn(2, 16, 6, 7).half().to(memory_format=order), torch.randn(16, 1, 3, 3).half() / 3

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.relu(F.conv2d(x, w, padding=1, groups=16))

    vkinductor.reset_stats()
    got = torch.compile(f, backend="vulkan", options={"tune": True, "tuning_seconds": 60.0})(*on_device([x, w]))
    same(got, f(x.double(), w.double()).half(), rtol=3e-3, atol=3e-3)
    ((bucket, choice),) = results().index(DEPTHWISE).values()
    sizes = "k3x3 s1x1 p1x1 d1x1"
    assert str(bucket) == f"float16 {'last' if last else 'first'} {sizes} {8 if last else 1} " + (
        "batch=2 channels=16 space0=6 space1=7"
    )
    assert choice.startswith("at_once=")
    assert vkinductor.stats()["timings"] == (2 if last else 4)


@pytest.mark.parametrize("sizes", [(32, 32, 112, 3), (32, 384, 14, 7), (32, 960, 7, 3), (1, 24, 7, 5)])
def test_tiles_of_a_card(sizes: tuple[int, int, int, int]) -> None:
    info, (batch, channels, side, tap) = cards.card(), sizes
    problem = problem_of(batch, channels, side, side, tap, 1, tap // 2, torch.float16)
    found = depthwise.candidates(info, problem)
    assert (
        found[0] == depthwise.tile_by_rules(info, problem) == (LastTile(8, 4, 32) if batch > 1 else LastTile(4, 3, 42))
    )
    assert len({DEPTHWISE.label(tile) for tile in found}) == len(found) > 8
    assert all(isinstance(tile, LastTile) and tile.fits(info, problem.window, problem.width) for tile in found)
    assert all(depthwise.estimate(info, problem, tile) > 0 for tile in found)
    assert len({tile.at_once for tile in found if isinstance(tile, LastTile)}) > 1


def test_what_no_tile_fits_has_no_candidates() -> None:
    window = depthwise.Window((3, 512), (1, 1), (0, 0), (1, 1))
    assert depthwise.candidates(cards.card(), Problem(1, 8, (8, 600), window, torch.float32, True, 4)) == []
