"""Tuning without a device: which candidate times choose, which problems share results, what is compared."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from cards import card
from tuning_cases import bucket

from vkinductor.codegen.tuning import compare
from vkinductor.codegen.tuning.family import Size, pruned
from vkinductor.codegen.tuning.gemm import GEMM, operands, problem_of
from vkinductor.codegen.tuning.learned import nearest
from vkinductor.codegen.tuning.select import LOOKS, ROUNDS, Times, select

Fake = float | tuple[float, float]


def chosen(times: dict[str, list[Fake] | Fake], baseline: str | None, budget: float = 1e9) -> Any:
    """``select`` with fake times (a list: sample by sample, then the last; a pair: waiting, independent, else both);
    each costs a unit of the budget."""
    taken: dict[str, int] = dict.fromkeys(times, 0)
    spent = 0

    def sample(name: str) -> Times:
        nonlocal spent
        spent += 1
        of = times[name]
        taken[name] += 1
        one = of[min(taken[name], len(of)) - 1] if isinstance(of, list) else of
        return Times(*one) if isinstance(one, tuple) else Times(one, one)

    choice, found = select(list(times), sample, lambda part: spent >= part * budget, baseline)
    return choice, {m.candidate: m for m in found}


def test_the_fastest_is_chosen() -> None:
    choice, found = chosen({"a": 10.0, "b": 8.0, "c": 9.0}, "a")
    assert choice == "b"
    assert (len(found["b"].samples), len(found["b"].rounds)) == (LOOKS, ROUNDS)


def test_the_heuristics_choice_stays_within_noise() -> None:
    assert chosen({"a": 10.0, "b": 9.85, "c": 9.9}, "a")[0] == "a"
    assert chosen({"a": 10.0, "b": 9.7}, "a")[0] == "b"
    # Without a baseline that runs the fastest is taken, by whatever.
    assert chosen({"b": 9.85, "c": 9.9}, None)[0] == "b"
    assert chosen({"b": 9.85, "c": 9.9}, "a")[0] == "b"


def test_one_lucky_sample_does_not_decide() -> None:
    assert chosen({"a": 10.0, "b": [7.0, 10.3, 10.3, 10.3]}, "a")[0] == "a"


def test_a_first_look_does_not_decide() -> None:
    # A device that was slow at first, or a candidate that was fast then.
    assert chosen({"a": [11.0] * LOOKS + [10.0], "b": 10.0}, "a")[0] == "a"
    assert chosen({"a": 10.0, "b": [9.0] * LOOKS + [10.0]}, "a")[0] == "a"
    assert chosen({"a": 10.0, "b": [11.0] * LOOKS + [9.0]}, "a")[0] == "b"


def test_what_is_faster_only_at_times_is_not_kept() -> None:
    often = [10.0] * LOOKS + [9.0, 9.0, 9.0, 9.0, 10.5, 10.5, 10.5]
    assert chosen({"a": 10.0, "b": often}, "a")[0] == "a"
    assert chosen({"a": 10.0, "b": [10.0] * LOOKS + [9.0] * 5 + [10.5] + [9.0]}, "a")[0] == "b"


def test_what_is_slower_in_one_of_the_measures_is_not_taken() -> None:
    # nn.Linear of 256 rows: 128 workgroups that share blocks, beside none that do.
    assert chosen({"a": (48.9, 25.0), "b": (40.0, 31.0)}, "a")[0] == "a"
    assert chosen({"a": (40.0, 31.0), "b": (48.9, 25.0)}, "a")[0] == "a"
    assert chosen({"a": (40.0, 31.0), "b": (40.2, 25.0)}, "a")[0] == "b"
    assert chosen({"a": (40.0, 31.0), "b": (35.0, 31.2)}, "a")[0] == "b"
    # The fastest of those that are slower in none; both count alike.
    times: dict[str, Any] = {"a": (40.0, 31.0), "b": (20.0, 33.0), "c": (38.0, 30.0), "d": (39.0, 28.0)}
    assert chosen(times, "a")[0] == "d"
    # Whose place none has to take.
    assert chosen(times, None)[0] == "b"


def test_what_is_slower_in_one_look_takes_turns_all_the_same() -> None:
    looks: list[Any] = [(11.4, 8.0)] * LOOKS
    assert chosen({"a": 10.0, "b": [*looks, (9.5, 9.0)]}, "a")[0] == "b"
    assert chosen({"a": 10.0, "b": [*looks, (10.3, 9.0)]}, "a")[0] == "a"


def test_a_slow_candidate_is_measured_once() -> None:
    choice, found = chosen({"a": 10.0, "b": 30.0, "c": 12.0}, "a")
    assert choice == "a"
    assert len(found["b"].samples) == 1
    assert len(found["c"].samples) == LOOKS


def test_time_is_up() -> None:
    choice, found = chosen({"a": 10.0, "b": 5.0, "c": 1.0}, "a", budget=LOOKS + 1)
    assert choice == "b"
    assert list(found) == ["a", "b"]
    # The finalists keep a part of it.
    choice, found = chosen({"a": 10.0, "b": 9.5, "c": 1.0}, "a", budget=2 * LOOKS + 1)
    assert (len(found["a"].rounds), len(found["b"].rounds)) == (1, 0)
    # Without a second look only what is far better is taken.
    assert choice == "a"
    assert chosen({"a": 10.0, "b": 8.0, "c": 1.0}, "a", budget=2 * LOOKS + 1)[0] == "b"
    assert select([], lambda name: Times(1.0, 1.0), lambda part: False, None) == (None, [])


# Buckets, neighbours, pruning: no device.


def test_sizes_that_vary_share_a_bucket() -> None:
    assert str(Size("m", 100)) == "m=100"
    assert str(Size("m", 100, static=False)) == str(Size("m", 128, static=False)) == "m~128"
    assert Size("m", 129, static=False).rounded == 256
    assert Size("m", 1, static=False).rounded == 1


def test_a_product_that_waits_is_a_problem_of_its_own() -> None:
    """Another tile may be the rule of thumb's there, and what it takes beside others does not matter."""
    for sizes, dtype, apart in (
        ((1, 256, 4096, 4096), torch.float16, True),
        ((1, 256, 4096, 4096), torch.float32, False),
        ((1, 8192, 8192, 512), torch.float16, False),
    ):
        alone = problem_of(*sizes, dtype, "nt")
        waiting = dataclasses.replace(alone, waits=True)
        assert (GEMM.bucket(alone) != GEMM.bucket(waiting)) == apart
        assert GEMM.operation(waiting).waits == apart
        assert not GEMM.operation(alone).waits
        assert nearest(GEMM.bucket(waiting), [(GEMM.bucket(alone), "x")]) == (None if apart else "x")


def test_neighbours() -> None:
    tuned = [
        (bucket(m=1024, n=1024), "large"),
        (bucket(m=128, n=1024), "small"),
        (bucket("float32 nn", m=64, n=64), "x"),
    ]
    assert nearest(bucket(m=700, n=1500), tuned) == "large"
    assert nearest(bucket(m=200, n=1024), tuned) == "small"
    assert nearest(bucket(m=2048, n=512), tuned) == "large"
    assert nearest(bucket(m=2049, n=1024), tuned) is None
    assert nearest(bucket(m=300, n=1024), tuned) is None
    assert nearest(bucket("bfloat16 nn", m=1024, n=1024), tuned) is None
    assert nearest(bucket(m=1024, k=1024), tuned) is None
    assert nearest(bucket(m=1024, n=1024), []) is None
    middle = [(bucket(m=512, n=8), "b"), (bucket(m=128, n=8), "a")]
    assert nearest(bucket(m=256, n=8), middle) == nearest(bucket(m=256, n=8), middle[::-1])


def test_hopeless_candidates_are_not_timed() -> None:
    class Estimated:
        name = "estimated"

        def candidates(self, info: Any, problem: Any) -> list[float]:
            return [50.0, 40.0, 10.0, 29.0, 31.0, 10.0]

        def label(self, candidate: float) -> str:
            return str(candidate)

        def estimate(self, info: Any, problem: Any, candidate: float) -> float:
            return candidate

    # The heuristic's choice stays, whatever the model says of it.
    assert pruned(Estimated(), None, None) == [50.0, 10.0, 29.0]  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("kind", ["discrete", "integrated", "cpu"])
def test_candidates_of_a_gpu(kind: str, dtype: torch.dtype) -> None:
    """On a device as NVIDIA's: known without a graph, each with a name and an estimate of its own."""
    gpu = card(kind=kind)
    for sizes in ((1, 512, 512, 512), (1, 1, 512, 512), (1, 512, 4, 512), (1, 16, 512, 4096), (4, 33, 34, 35)):
        for layout in ("nn", "nt", "tn"):
            problem = problem_of(*sizes, dtype, layout)
            found = pruned(GEMM, gpu, problem)
            labels = [GEMM.label(tile) for tile in found]
            assert len(set(labels)) == len(labels)
            assert kind == "cpu" or min(sizes[1:3]) > 16 or len(labels) > 1
            assert all(GEMM.estimate(gpu, problem, tile) > 0 for tile in found)


# Comparing.


def test_what_is_wrong_is_named() -> None:
    want = torch.ones(4, 5)
    got = want.clone()
    assert compare.difference(got, want, (1e-3, 1e-3)) is None
    got[2, 3] = 2.0
    assert "element 13 is 2 instead of 1" in str(compare.difference(got, want, (1e-3, 1e-3)))
    got[2, 3] = torch.nan
    assert "nan" in str(compare.difference(got, want, (1e-3, 1e-3)))
    assert "shape" in str(compare.difference(got[:3], want, (1e-3, 1e-3)))
    large = torch.ones(8192, 4096, dtype=torch.float16)
    assert compare.difference(large.clone(), large, (1e-3, 1e-3)) is None
    for rows in (slice(0, 64), slice(4000, 4064), slice(8128, 8192)):
        got = large.clone()
        got[rows, 100:164] = 2
        assert "is 2 instead of 1" in str(compare.difference(got, large, (1e-3, 1e-3)))
    whole = torch.tensor([1, 2], dtype=torch.int8)
    assert compare.difference(whole + 1, whole, (1.0, 1.0)) is not None


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("batch", [1, 3])
def test_operands_are_what_the_problem_says(layout: str, batch: int) -> None:
    problem = problem_of(batch, 24, 40, 16, torch.float16, layout)
    for a_width in (8, 4, 1):
        narrow = dataclasses.replace(problem, a_width=a_width)
        a, b = (torch.empty_strided(o.size, o.stride, dtype=o.dtype) for o in operands(narrow))
        assert (a @ b).shape[-2:] == (24, 40)
        assert a.stride(-1 if layout[0] == "n" else -2) == 1
        assert b.stride(-1 if layout[1] == "n" else -2) == 1
        pitch = max(a.stride()[-2:])
        assert pitch % a_width == 0
        assert a_width == 8 or pitch % (2 * a_width)
