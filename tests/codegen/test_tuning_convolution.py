"""Tuning of convolutions that gather: a card's candidates, measuring, and that a graph takes what was chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import cards
import pytest
import torch
import torch.nn.functional as F
from compiled import on_device, same

import vkinductor
from vkinductor.codegen import convolution_tiles, heuristics
from vkinductor.codegen.gemm.cooperative import SubgroupTile
from vkinductor.codegen.tuning.convolution import CONVOLUTION, problem_of
from vkinductor.codegen.tuning.results import results
from vkinductor.codegen.tuning.tuner import tune
from vkinductor.device.registry import registry

TILE = SubgroupTile(16, 32, 16, 16, 16, (8, 8, 8), emulated=8)
TILES = [TILE, dataclasses.replace(TILE, splits=2)]


@pytest.fixture
def two_tiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Two candidates, and an empty store."""
    from vkinductor.runtime.store import DiskStore

    device = registry.open().runtime
    monkeypatch.setitem(device.__dict__, "store", DiskStore(tmp_path / "store"))
    monkeypatch.setattr(convolution_tiles, "candidates", lambda info, problem: TILES)
    registry.tuning = None
    with heuristics.override(convolution_products=1):
        yield
    registry.tuning = None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_candidate_is_right(two_tiles: None, dtype: torch.dtype) -> None:
    found = tune(CONVOLUTION, problem_of(2, 12, 7, 6, 24, 3, 2, 1, dtype), seconds=60)
    assert found is not None
    assert {(row.status, row.detail) for row in found.rows} == {("ok", "")}
    assert len(found.rows) == 2


def test_a_wrong_result_is_seen() -> None:
    operation = CONVOLUTION.operation(problem_of(2, 8, 5, 5, 16, 3, 1, 1, torch.float16))
    values = [torch.randn(o.size).to(o.dtype) for o in operation.operands]
    right = F.conv2d(values[0].double(), values[1].double(), padding=1).half()
    assert operation.check(values, right) is None
    wrong = right.clone()
    wrong[1, -1, 4, 4] += 1
    assert "of image 1" in str(operation.check(values, wrong))


def test_max_autotune_takes_what_it_finds(two_tiles: None) -> None:
    x = torch.randn(2, 16, 6, 7).half().to(memory_format=torch.channels_last)
    w = torch.randn(24, 16, 3, 3).half() / 8

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.relu(F.conv2d(x, w, padding=1))

    vkinductor.reset_stats()
    got = torch.compile(f, backend="vulkan", options={"tune": True, "tuning_seconds": 60.0})(*on_device([x, w]))
    same(got, f(x.double(), w.double()).half(), rtol=3e-3, atol=3e-3)
    assert vkinductor.stats()["timings"] == 2
    ((bucket, choice),) = results().index(CONVOLUTION).values()
    assert str(bucket) == "float16 k3x3 s1x1 p1x1 d1x1 batch=2 channels=16 outputs=24 space0=6 space1=7"
    assert choice.startswith("subgroup")


def test_few_tiles_cut_the_sum() -> None:
    """ResNet's last layer has 52 tiles of 128 x 128 for 132 units: among the first candidates are split ones;
    of the first layer there are enough."""
    info = cards.card()
    last = convolution_tiles.candidates(info, problem_of(32, 512, 7, 7, 512, 3, 1, 1, torch.float16))
    assert any(tile.splits > 1 for tile in last[:4])
    first = convolution_tiles.candidates(info, problem_of(32, 64, 56, 56, 64, 3, 1, 1, torch.float16))
    assert {tile.splits for tile in first} == {1}
    assert first[0].bn == 64
    assert all(tile.fits(info, problem_of(32, 64, 56, 56, 64, 3, 1, 1, torch.float16).product) for tile in first)
