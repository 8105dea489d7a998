"""Recorded programs whose dispatches wait for each other (option `chained`)."""

from __future__ import annotations

import contextlib

import cards
import pytest
import torch
import torch.nn.functional as F
from torch._inductor import config

import vkinductor
from vkinductor.codegen import heuristics, recording
from vkinductor.codegen.attention.step_tiles import StepTile
from vkinductor.codegen.fused import tiles
from vkinductor.codegen.gemm import skinny
from vkinductor.codegen.gemm.choose import forced
from vkinductor.codegen.gemm.problem import Problem
from vkinductor.codegen.gemm.skinny import GemvTile, whole_rows
from vkinductor.device.attention_step import attention_step
from vkinductor.device.fused_linear import DENSE
from vkinductor.runtime.replay.chained import ChainedProgram
from vkinductor.runtime.replay.program import Program

WIDTH, HEADS, LENGTH, HEAD = 128, 2, 32, 64


def layers(x, gain, qkv, out, caches, position, cos, sin):
    """Norm and q, k, v; a step of attention; its linear layer and the sum: a decode step's first half, twice."""
    for k_cache, v_cache in caches:
        heads = torch.ops.vkinductor.fused_linear(x, qkv, [DENSE] * 3, [None] * 3, "", "rms", 1e-5, gain, None, False)
        q, k, v = (h.view(1, 1, HEADS, HEAD).transpose(1, 2) for h in heads.split([WIDTH] * 3, -1))
        y = attention_step(q, k, v, k_cache, v_cache, position, cos, sin, None, None, None, None, None, HEAD**-0.5)
        x = x + F.linear(y.reshape(1, WIDTH), out)
    return x


@pytest.fixture
def arguments():
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator).to("vulkan")

    caches = [(normal(1, HEADS, LENGTH, HEAD), normal(1, HEADS, LENGTH, HEAD)) for _ in range(2)]
    weights = [normal(WIDTH, WIDTH) * WIDTH**-0.5 for _ in range(3)]
    tables = normal(1, 1, HEAD), normal(1, 1, HEAD)
    return (
        normal(1, WIDTH),
        normal(WIDTH),
        weights,
        weights[0].clone(),
        caches,
        torch.tensor([20]).to("vulkan"),
        *tables,
    )


@contextlib.contextmanager
def tiles_that_load_weights_first(turns, direct):
    lanes, loads = (8, 4) if direct else (16, 2)
    with (
        tiles.forced(tiles.FusedTile(64, lanes, 1, loads, flat=True, direct=direct, turns=turns)),
        forced(GemvTile(64, lanes, 1, loads, flat=True, own=True, direct=direct, turns=turns)),
        heuristics.override(attention_step=StepTile(64, 2, 1, early=True)),
    ):
        yield


def program_of(before: list) -> Program:
    (made,) = [r.program for r in recording.recordings() if not any(r is b for b in before)]
    assert made is not None
    return made


def run(arguments, turns=0, direct=True, **options):
    """Results and caches of four calls, and the program."""
    torch._dynamo.reset()
    before, results = recording.recordings(), []
    with tiles_that_load_weights_first(turns, direct), torch.no_grad():
        compiled = torch.compile(layers, backend="vulkan", fullgraph=True, options=options)
        x, gain, qkv, out, caches, *rest = arguments
        for step in range(4):
            copies = {id(cache): cache.clone() for pair in caches for cache in pair}
            mine = [tuple(copies[id(cache)] for cache in pair) for pair in caches]
            y = compiled(x * (step + 1), gain, qkv, out, mine, *rest)
            results.append([t.cpu() for t in (y, *mine[0], *mine[1])])
    return results, program_of(before)


@pytest.mark.parametrize(("turns", "direct"), [(0, True), (3, True), (3, False)])
def test_results_are_those_of_dispatches_with_barriers(arguments, turns, direct):
    """Also of kernels whose workgroups take tiles in turns, which alone changes no result."""
    expected, plain = run(arguments, 0, direct, chained=False)
    before = vkinductor.stats()["barriers"]
    results, program = run(arguments, turns, direct, chained=True)
    assert type(plain) is Program
    assert isinstance(program, ChainedProgram)
    assert (program.dispatches, program.barriers) == (plain.dispatches, 0)
    assert plain.barriers == 5
    for got, want in zip(results, expected, strict=True):
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b)
    assert vkinductor.stats()["barriers"] > before  # between programs and copies they stay
    assert all(step.early for step in program.steps)


def test_what_another_step_writes_is_not_read_early(arguments):
    """Both layers with one pair of caches: the second step of attention may not read before the first has written."""
    x, gain, qkv, out, caches, *rest = arguments
    arguments = x, gain, qkv, out, [caches[0], caches[0]], *rest
    expected, _ = run(arguments, chained=False)
    results, program = run(arguments, chained=True)
    assert [step.early for step in program.steps] == [True, False, True, True, False, True]
    for got, want in zip(results, expected, strict=True):
        assert all(map(torch.equal, got, want))


def test_an_unknown_value_is_refused():
    with pytest.raises(ValueError, match=r"'chained'.*one of 'auto', True, False, not 'yes'"):
        torch.compile(lambda x: x + 1, backend="vulkan", options={"chained": "yes"})(torch.ones(2))


@pytest.mark.parametrize(("chunks", "split"), [(72, (8, 1, 9)), (192, (16, 1, 12)), (384, (32, 1, 12)), (704, None)])
def test_rows_lie_in_a_part_of_a_subgroup(chunks, split):
    assert whole_rows(chunks) == split


def test_workgroups_are_few_where_dispatches_wait():
    """norm, q, k and v of SmolLM2-135M on an H200: 60 workgroups instead of 480. llama-1.1B's gates and down, 46 and 23
    MB: two a multiprocessor that take tiles in turns; llama3-8B's gates as ever."""
    info = cards.card()

    def tile(sizes, chunks, gated=False):
        return tiles.tile_of(info, 1, sizes, chunks, gated, True)

    def gemv(n, k):
        return skinny.candidates(info, Problem(1, 1, n, k, torch.float16, b_contiguous="k", a_width=8, b_width=8))[0]

    assert tile((576, 192, 192), 72).lanes == 128
    with heuristics.override(form="chained"):
        one, several = {"flat": True, "own": True, "direct": True}, {"flat": True, "own": True, "turns": 264}
        assert tile((576, 192, 192), 72) == tiles.FusedTile(128, 8, 1, 9, **one)
        assert gemv(576, 1536) == GemvTile(128, 16, 1, 12, **one)
        assert tile((5632, 5632), 256, True) == tiles.FusedTile(256, 64, 2, 4, **several)
        assert tile((2048, 256, 256), 256) == tiles.FusedTile(256, 32, 1, 8, direct=True, **several)
        assert gemv(2048, 5632) == GemvTile(256, 128, 2, 6, **several)
        assert tile((14336, 14336), 512, True).turns == 0


def test_a_graph_says_how_many_products_it_has(monkeypatch):
    """Only dispatches of many wait for each other where nothing else is asked for."""
    seen, products = [], heuristics.products

    def asked() -> int:
        seen.append(products())
        return seen[-1]

    monkeypatch.setattr(heuristics, "products", asked)
    weights = [torch.ones(64, 64).to("vulkan") for _ in range(5)]

    def chain(x):
        for weight in weights:
            x = F.linear(x, weight).relu()
        return x

    torch._dynamo.reset()
    torch.compile(chain, backend="vulkan")(torch.ones(1, 64).to("vulkan"))
    assert set(seen) == {5}


def test_it_is_for_many_recorded_products_by_nvidias_driver(monkeypatch):
    card = cards.card(driver_name="NVIDIA")
    for products, waits in ((7, False), (8, True)):
        monkeypatch.setattr(heuristics, "products", lambda products=products: products)
        with config.patch(graph_partition=True):
            assert heuristics.dispatches_wait(card) == waits
    with config.patch(graph_partition=True):
        assert not heuristics.dispatches_wait(cards.card(driver_name="NVK"))
    # The option recording: without it there are barriers.
    with config.patch(graph_partition=False):
        assert not heuristics.dispatches_wait(card)
