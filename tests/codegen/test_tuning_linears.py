"""Tuning of linear layers of few rows: a card's candidates, measuring, and that a graph takes what was chosen."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import cards
import pytest
import torch
import torch.nn.functional as F
from compiled import on_device, same
from quantized_blocks import blocks

import vkinductor
from vkinductor.codegen import heuristics
from vkinductor.codegen.fused import choose
from vkinductor.codegen.fused.choose import Layers, Table
from vkinductor.codegen.fused.tiles import FusedTile
from vkinductor.codegen.quantized.gemv import QuantizedTile
from vkinductor.codegen.quantized.lanes import LanesTile
from vkinductor.codegen.quantized.staged import StagedTile
from vkinductor.codegen.tuning import compare
from vkinductor.codegen.tuning.linears import LINEARS, problem_of
from vkinductor.codegen.tuning.results import results
from vkinductor.codegen.tuning.tuner import tune
from vkinductor.device.fused_linear import DENSE
from vkinductor.device.quantized import quantized_linear
from vkinductor.device.registry import registry
from vkinductor.runtime import context

HALF = torch.float16


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch, empty_store: Path) -> None:
    """Four candidates a problem."""
    monkeypatch.setitem(choose.TABLES, True, Table((32, 64), (8, 16), (1, 2), (1, 2), 4))


def alone(*sizes: Any) -> Layers:
    """The problem of vkinductor.quantized_linear."""
    return dataclasses.replace(problem_of(*sizes), alone=True)


@pytest.mark.parametrize(
    "problem",
    [
        problem_of(1, 96, (48, 16, 16), HALF, norm="rms"),
        problem_of(2, 90, (37, 37), torch.float32, gate="silu", norm="layer"),
        problem_of(1, 256, (40, 24), torch.bfloat16, "Q8_0"),
        problem_of(3, 512, (33, 33), HALF, "Q4_K", "gelu", "rms"),
        alone(1, 256, (70,), HALF, "Q6_K"),
        alone(5, 64, (9,), torch.float32, "Q4_0"),
    ],
    ids=lambda problem: str(LINEARS.bucket(problem)),
)
def test_every_candidate_is_right(problem: Layers) -> None:
    found = tune(LINEARS, problem, seconds=60)
    assert found is not None
    assert {(row.status, row.detail) for row in found.rows} == {("ok", "")}
    assert len({row.label for row in found.rows}) == 4
    assert found.nbytes > 0 < found.flops


def test_bytes_are_compared_with_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And by what rounding to them may change; where there is no kernel for that, floats as ever."""
    monkeypatch.setattr(context.get(), "info", cards.card())
    for format, as_bytes in (("Q4_0", True), ("IQ4_NL", False)):
        problem = dataclasses.replace(problem_of(1, 2048, (2048,), HALF, format), bytes=True)
        found = choose.candidates(cards.card(), problem)
        assert len(found) > 8
        assert {choose.rounds_to_bytes(tile) for tile in found} == {as_bytes}
        assert LINEARS.operation(problem).tolerance == ((0.05, 0.05) if as_bytes else compare.ROUNDING[HALF])


def test_a_wrong_result_is_seen() -> None:
    """In a column that comes from any of the weights, or with a gate from both."""
    for problem in (problem_of(2, 64, (300, 20), HALF, norm="rms"), problem_of(2, 64, (300, 300), HALF, gate="silu")):
        operation = LINEARS.operation(problem)
        values = [torch.randn(o.size).to(o.dtype) for o in operation.operands]
        x, first, second = values[0].float(), values[1].float(), values[2].float()
        if problem.problem.norm:
            x = F.rms_norm(x, (64,), values[3].float(), 1e-5)
        products = x @ first.T, x @ second.T
        right = (F.silu(products[0]) * products[1] if problem.problem.gate else torch.cat(products, -1)).half()
        assert operation.check is not None
        assert operation.check(values, right) is None
        wrong = right.clone()
        wrong[1, -1] += 1
        assert "of the columns" in str(operation.check(values, wrong))


def _mlp(x: torch.Tensor, gain: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    rows = F.rms_norm(x, gain.shape, gain, 1e-5)
    return F.silu(F.linear(rows, w)) * F.linear(rows, v) + x[:, : w.shape[0]]


def test_max_autotune_takes_what_it_finds() -> None:
    """And the default takes it afterwards; it is not measured again."""
    given = [torch.randn(1, 96), torch.randn(96), torch.randn(48, 96) / 10, torch.randn(48, 96) / 10]
    want = _mlp(*given)
    vkinductor.reset_stats()
    with heuristics.override(fused_linears=True):
        tuned = torch.compile(_mlp, backend="vulkan", options={"tune": True, "tuning_seconds": 60.0})
        same(tuned(*on_device(given)), want, rtol=1e-4, atol=1e-4)
        ((bucket, choice),) = results().index(LINEARS).values()
        assert str(bucket) == "float32 dense+dense silu rms gain 4 m=1 k=96 n0=48 n1=48"
        assert choice.startswith("fused threads=")
        assert vkinductor.stats()["timings"] == 4
        asked: list[Any] = []
        hook = choose.tuned

        def noted(layers: Layers) -> Any:
            asked.append(hook(layers))
            return asked[-1]

        torch._dynamo.reset()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(choose, "tuned", noted)
            same(torch.compile(_mlp, backend="vulkan")(*on_device(given)), want, rtol=1e-4, atol=1e-4)
    assert [LINEARS.label(tile) for tile in asked] == [choice]
    assert vkinductor.stats()["timings"] == 4


def test_a_weight_in_blocks_alone() -> None:
    x, w = torch.randn(2, 256), blocks("Q8_0", 40, 256)

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return quantized_linear(x, w, 8)

    got = torch.compile(f, backend="vulkan", options={"tune": True, "tuning_seconds": 60.0})(*on_device([x, w]))
    same(got, f(x, w), rtol=1e-4, atol=1e-3)
    ((bucket, _),) = results().index(LINEARS).values()
    assert str(bucket).startswith("float32 Q8_0 alone ")


def test_who_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs whose kernels depend on each other's workgroups, many rows, weights with gaps, forced tiles."""
    info, plain = cards.card(), problem_of(1, 256, (64,), HALF)
    asked: list[Layers] = []
    monkeypatch.setattr(choose, "tuned", asked.append)
    assert choose.chosen(info, plain) == choose.by_rules(info, plain)
    assert asked.pop() == plain
    choose.chosen(info, problem_of(17, 256, (64,), HALF))
    gaps = dataclasses.replace(plain.problem, pitches=(256, 264))
    choose.chosen(info, dataclasses.replace(plain, problem=gaps))
    with heuristics.override(form="chained"):
        choose.chosen(info, plain)
    with monkeypatch.context() as patch:
        patch.setattr(heuristics, "program_workgroup", lambda info: 256)
        choose.chosen(info, plain)
    tile = FusedTile(32, 8, 1, 1)
    with LINEARS.forced(tile):
        assert choose.chosen(info, plain) == tile
    assert asked == []


CARD = [
    (problem_of(1, 2048, (2048, 256, 256), HALF, norm="rms"), FusedTile),
    (problem_of(1, 2048, (5632, 5632), HALF, "Q4_K", "silu", "rms"), StagedTile),
    (problem_of(8, 2048, (2048,), HALF, "Q6_K"), FusedTile),
    (alone(1, 2048, (2048,), HALF, "Q4_0"), QuantizedTile),
    (alone(4, 5632, (2048,), torch.float32, "Q8_0"), QuantizedTile),
]


@pytest.mark.parametrize(("problem", "kind"), CARD, ids=lambda value: str(getattr(value, "__name__", "")) or None)
def test_candidates_of_a_card(problem: Layers, kind: type) -> None:
    info, of = cards.card(), problem.problem
    found = choose.candidates(info, problem)
    assert found[0] == choose.by_rules(info, problem)
    assert type(found[0]) is kind
    assert len({LINEARS.label(tile) for tile in found}) == len(found) == choose.TABLES[False].most
    assert all(choose.estimate(info, problem, found[0]) <= choose.estimate(info, problem, tile) for tile in found)
    for tile in found:
        if isinstance(tile, StagedTile):
            assert tile.fits(info, of, problem.rows_staged)
        elif problem.alone:
            assert type(tile) is QuantizedTile
            assert tile.fits(info, problem.rows)
        else:
            assert isinstance(tile, FusedTile)
            assert tile.holds(info, problem.rows, bool(of.gate))


def test_lanes_of_a_processor() -> None:
    """As the rules have it, with more rows of weights or fewer; and teams."""
    info = registry.open().runtime.info
    problem = alone(1, 256, (64,), HALF, "Q4_0")
    if not isinstance(choose.by_rules(info, problem), LanesTile):
        pytest.skip("no processor of one size of subgroups")
    found = choose.candidates(info, problem)
    assert sum(isinstance(tile, LanesTile) for tile in found) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 100, (8,), HALF, "Q4_0"), "a multiple of 32 weights"),
        ((1, 256, (8,), HALF, "Q4"), "unknown weight format 'Q4': choose one of Q4_0"),
        ((1, 256, (8, 9), HALF, "", "silu"), "two weights of one size"),
    ],
)
def test_what_is_no_layer(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        problem_of(*arguments)


def test_buckets() -> None:
    """What decides which kernel is right or fast is in the name."""
    plain = problem_of(1, 256, (64,), HALF)
    others = [
        problem_of(2, 256, (64,), HALF),
        problem_of(1, 256, (64,), torch.bfloat16),
        problem_of(1, 256, (32, 32), HALF),
        problem_of(1, 256, (64,), HALF, "Q4_0"),
        problem_of(1, 256, (64,), HALF, norm="rms"),
        alone(1, 256, (64,), HALF, "Q4_0"),
        dataclasses.replace(problem_of(1, 256, (64,), HALF, "Q4_0"), bytes=True),
        dataclasses.replace(plain, problem=dataclasses.replace(plain.problem, biases=(2,))),
        dataclasses.replace(plain, static=False),
        dataclasses.replace(plain, chunks=256),
    ]
    assert plain.problem.formats == (DENSE,)
    assert len({str(LINEARS.bucket(problem)) for problem in [plain, *others]}) == 1 + len(others)
