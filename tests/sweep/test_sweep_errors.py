"""What a result may be off by: sums in float32 pass, sums in half precision and lost terms do not."""

from __future__ import annotations

import math

import pytest
import torch

from vkinductor.runtime import context
from vkinductor.sweep import errors
from vkinductor.sweep.families.products import FAMILIES, _values
from vkinductor.sweep.program import named

DIRECT = next(family for family in FAMILIES if family.name == "products, direct")


def program(**choice):
    tile = next(iter(DIRECT.axes(context.get().info)["tile"]))
    usual = {"tile": tile, "dtype": "float16", "a": "rows", "b": "columns", "form": "mm", "epilogue": "to float32"}
    return named(DIRECT, context.get().info, {**usual, "values": "cancelling", "sizes": "vary", **choice}).program


def test_units():
    one, half = torch.ones(2), torch.tensor([1.0, 1.5])
    assert errors.ratio(half, one, 0.25) == 2.0
    assert errors.ratio(half, torch.tensor([1.0, math.nan]), 1.0) == math.inf
    assert errors.ratio(torch.tensor([math.inf, math.nan]), torch.tensor([math.inf, math.nan]), 1.0) == 0.0
    assert errors.ratio(torch.tensor([math.inf]).half(), torch.tensor([1e6]).double(), 1.0) == 0.0  # beyond float16
    assert errors.ratio(torch.tensor([3]), torch.tensor([4]), 9.0) == math.inf
    with pytest.raises(AssertionError, match="shape"):
        errors.ratio(one, torch.ones(3), 1.0)


@pytest.mark.parametrize("values", ["normal", "cancelling"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_sums_in_float32_pass(dtype, values):
    own = program(dtype=dtype, values=values)
    operands = own.operands({"m": 9, "n": 17, "k": 130}, torch.Generator().manual_seed(0))
    a, b, r, c = (x.float() for x in operands)
    kind = operands[0].dtype
    assert own.judge(operands, own.function(a, b, r, c).to(kind).float()) < 0.5
    assert own.judge(operands, own.function(a, b[:, :17].contiguous(), r, c)) < 0.5


@pytest.mark.parametrize("values", ["normal", "cancelling"])
def test_sums_in_half_precision_do_not(values):
    a, b = (x.half() for x in _values("cancelling", 9, 17, 64, (), torch.Generator().manual_seed(0)))
    total = torch.zeros(9, 17).half()
    for k in range(64):
        total = total + a[:, k : k + 1] * b[k : k + 1]
    own = program(values="cancelling", epilogue="none")
    operands = [a, b, torch.zeros(9, 17).half(), torch.zeros(17).half()]
    assert own.judge(operands, total) > 10


def test_a_term_that_is_lost_shows():
    own = program(values="normal", epilogue="none")
    operands = own.operands({"m": 9, "n": 17, "k": 130}, torch.Generator().manual_seed(0))
    a, b, _, _ = (x.double() for x in operands)
    assert own.judge(operands, (a[:, :129] @ b[:129]).half()) > 10


def test_exact_results():
    judge = errors.exactly(lambda x: (x.sort().values, x > 0))
    x = torch.tensor([2.0, math.nan, -1.0])
    assert judge([x], (x.sort().values, x > 0)) == 0.0
    assert judge([x], (x, x > 0)) == math.inf
    with pytest.raises(AssertionError, match="float16"):
        judge([x], (x.sort().values.half(), x > 0))
