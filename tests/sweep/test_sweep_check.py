"""A program from end to end: right ones pass, wrong ones, failing ones and unequal bits are told."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch

from vkinductor.runtime import context
from vkinductor.runtime.errors import UnsupportedError
from vkinductor.sweep import check as checking
from vkinductor.sweep.check import check, differing_bits, gradients
from vkinductor.sweep.errors import judged
from vkinductor.sweep.families import FAMILIES
from vkinductor.sweep.program import Named, Program, named, programs
from vkinductor.sweep.sizes import Span, sample

SPANS = {"n": Span(2, 40)}


def own(function, reference=None, **more) -> Named:
    def operands(sizes, g):
        return [torch.randn(sizes["n"], generator=g), torch.randn(sizes["n"], generator=g)]

    def allowed(wide, wants):
        return [1e-6 * (1 + w.detach().abs()) for w in wants]

    return Named("test", Program(function, operands, judged(reference or function, allowed), SPANS, **more))


@pytest.mark.parametrize("dynamic", [False, True])
def test_right_and_wrong(dynamic):
    right = own(lambda x, y: x * y + x, dynamic=dynamic)
    sizes = [{"n": 7}, {"n": 33}]
    assert all(0 <= o.ratio <= 1 and not o.problem for o in check(right, sizes, 0))
    wrong = own(lambda x, y: x * y + x, lambda x, y: x * y + 1.0001 * x, dynamic=dynamic)
    outcomes = check(wrong, sizes, 0)
    assert all(o.ratio > 10 and "times what" in o.problem for o in outcomes)
    assert [o.sizes for o in outcomes] == sizes


def test_gradients_are_results():
    def f(x, y):
        return (x * y).sin()

    right = own(f, lambda x, y: gradients(2, f, (x, y), torch.float32), gradients=2)
    assert all(o.ratio <= 1 for o in check(right, [{"n": 5}, {"n": 6}], 0))
    assert differing_bits(right, {"n": 5}, 0, 3) == 0


def test_failures_and_refusals():
    def fails(x, y):
        return torch.cat([x, y]).view(3, -1)

    (outcome,) = check(own(fails, lambda x, y: x), [{"n": 4}], 0)
    assert outcome.ratio == math.inf
    assert not outcome.refused
    assert outcome.problem

    def refuse(*arguments):
        raise UnsupportedError("no such thing")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "_run", refuse)
        (outcome,) = check(own(lambda x, y: x), [{"n": 4}], 0)
    assert outcome.refused
    assert "no such thing" in outcome.problem


def test_the_second_call_is_judged_too(monkeypatch):
    """A failure that only replays of a recording show, whatever sizes a program is tried with again."""
    right = own(lambda x, y: x + y)
    turns = itertools.count()

    def runs(program, f, operands):
        return [[x.cpu() + y.cpu() + next(turns)] for x, y in operands]

    monkeypatch.setattr(checking, "_run", runs)
    (outcome,) = check(right, [{"n": 4}], 0)
    assert outcome.ratio > 1
    assert outcome.problem.endswith("in the second call alone")


def test_other_bits_are_counted(monkeypatch):
    right = own(lambda x, y: x + y)
    turns = itertools.count()
    monkeypatch.setattr(checking, "_run", lambda program, f, operands: [torch.tensor(float(next(turns) // 2))])
    assert differing_bits(right, {"n": 4}, 0, 5) == 3


@pytest.mark.parametrize(
    "name", ["products, direct", "products, workgroup matrices", "scans", "pointwise and transposes"]
)
def test_some_of_the_sweep(name):
    """One program of each with a few sizes; `python -m vkinductor sweep` runs the rest for as long as it is given."""
    info = context.get().info
    found = next(p for p in programs(FAMILIES[name], info, 0))
    program = found.program
    spans = {n: dataclasses.replace(s, low=max(2, s.low)) for n, s in program.spans.items()}
    outcomes = check(found, list(itertools.islice(sample(spans, 0), 3)), 0)
    assert all(not o.problem for o in outcomes), outcomes


@pytest.mark.parametrize(
    ("operator", "dtype", "sizes"),
    [
        ("nll", "float16", {"rows": 63, "columns": 9}),
        ("residual and rms norm", "bfloat16", {"rows": 19, "columns": 90}),
    ],
)
def test_training_may_round_what_it_saves(operator, dtype, sizes):
    family = FAMILIES["gradients of norms and softmax"]
    offset = "5" if operator == "nll" else "0"
    choice = {"operator": operator, "layout": "chosen", "dtype": dtype, "x": "rows", "offset": offset, "sizes": "fixed"}
    found = named(family, context.get().info, choice)
    (outcome,) = check(found, [sizes], 1)
    assert outcome.ratio <= 1


@pytest.mark.parametrize("columns", [7, 8])
def test_a_row_that_is_written_out_may_be_rounded_before_it_is_summed(columns):
    """Of less than 8 elements Inductor writes out the sum, and what is summed lies in memory, as in eager."""
    choice = {"operator": "nll", "layout": "columns", "dtype": "float16", "x": "expanded", "offset": "5"}
    choice["sizes"] = "fixed"
    found = named(FAMILIES["reductions, norms and softmax"], context.get().info, choice)
    assert found is not None
    (outcome,) = check(found, [{"rows": 15, "columns": columns}], 1130)
    assert not outcome.problem
