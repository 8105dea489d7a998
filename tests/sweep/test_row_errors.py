"""What gradients may be off by: float32 passes, a thousandth does not, nor do sums in half precision."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from vkinductor.runtime import context
from vkinductor.sweep.check import gradients, upstream
from vkinductor.sweep.families import FAMILIES
from vkinductor.sweep.families.attention import _weights
from vkinductor.sweep.program import Program, named
from vkinductor.sweep.row_errors import OF_GRADIENTS


def program(family: str, **choice: str) -> Program:
    found = named(FAMILIES[family], context.get().info, choice)
    assert found is not None
    return found.program


def of_rows(operator: str, dtype: str, offset: str = "5") -> Program:
    usual = {"operator": operator, "layout": "chosen", "dtype": dtype, "x": "rows", "offset": offset, "sizes": "fixed"}
    return program("gradients of norms and softmax", **usual)


def drawn(own: Program, **sizes: int) -> list[torch.Tensor]:
    return own.operands(sizes, torch.Generator().manual_seed(0))


def in_float32(own: Program, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return gradients(own.gradients, own.function, [x.float() for x in operands], operands[0].dtype)


def added(terms: torch.Tensor) -> torch.Tensor:
    """The sum of rows [..., n] one term after the other, in their dtype."""
    total = torch.zeros_like(terms[..., :1])
    for column in terms.split(1, -1):
        total = total + column
    return total


@pytest.mark.parametrize("offset", ["0", "5"])
@pytest.mark.parametrize("operator", OF_GRADIENTS)
def test_float32_passes_and_a_thousandth_does_not(operator, offset):
    for dtype in ("float32", "float16", "bfloat16"):
        own = of_rows(operator, dtype, offset)
        operands = drawn(own, rows=9, columns=130)
        out, gradient = in_float32(own, operands)
        kind = operands[0].dtype
        assert own.judge(operands, [out.to(kind), gradient.to(kind)]) < 1
        if dtype == "float32":
            assert own.judge(operands, [out, gradient * 1.001]) > 20


@pytest.mark.parametrize("offset", ["0", "5"])
def test_layer_norm_forward(offset):
    choice = {"operator": "layer norm", "layout": "chosen", "dtype": "float32", "x": "rows", "sizes": "fixed"}
    own = program("reductions, norms and softmax", **choice, offset=offset)
    operands = drawn(own, rows=9, columns=130)
    out = own.function(*operands)
    assert own.judge(operands, out) < 1
    assert own.judge(operands, out * 1.001) > 20


def _softmax(x, y, g, u):
    p = x.float().softmax(-1).half()
    return p * (u - added(p * u))


def _log_softmax(x, y, g, u):
    return u - x.float().softmax(-1).half() * added(u)


def _rms_norm(x, y, g, u):
    r = (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    h = x * r
    return r * (u * g - h * (added((u * g * h).half()) / x.shape[-1]))


@pytest.mark.parametrize("formula", [_softmax, _log_softmax, _rms_norm])
def test_sums_in_half_precision_do_not_pass(formula):
    own = of_rows(formula.__name__[1:].replace("_", " "), "float16")
    operands = drawn(own, rows=9, columns=130)
    x, y, g = operands[:3]
    out = in_float32(own, operands)[0].half()
    assert own.judge(operands, [out, formula(x, y, g, upstream(out, torch.float16)).half()]) > 1


@pytest.mark.parametrize("mask", ["none", "causal", "bool"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_attention(dtype, mask):
    """Weights and gradients of scores may be rounded once, as operands of matrices; sums may not, nor bits be cut."""
    choice = {"kernel": "fma 0", "dtype": dtype, "widths": "20 and 9", "share": "3", "mask": mask, "layout": "rows"}
    own = program("attention, gradients", **choice, sizes="fixed")
    operands = drawn(own, queries=100, keys=70)
    kind = operands[0].dtype
    q, k, v, seen = (x.double() if x.dtype.is_floating_point else x for x in operands)
    keys, values = (x.repeat_interleave(3, 1) for x in (k, v))
    p = _weights(q, k, seen, mask)[0]

    def rounded(x):
        return x.to(kind).double() if kind != torch.float32 else x

    def summed(x):
        return x.unflatten(1, (2, 3)).sum(2)

    out = rounded(rounded(p) @ values)
    g = upstream(out, kind).double()
    ds = rounded(p * (g @ values.mT - (g * out).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5)
    results = [x.to(kind) for x in (out, ds @ keys, summed(ds.mT @ q), summed(rounded(p).mT @ g))]
    assert own.judge(operands, results) < 1
    if dtype == "float32":
        assert own.judge(operands, [results[0], results[1] * 1.001, *results[2:]]) > 10
        return
    zeros = -int(torch.finfo(kind).eps / torch.finfo(torch.float32).eps)  # a mask of the bits that stay

    def shortened(x):
        return (x.float().contiguous().view(torch.int32) & zeros).view(torch.float32)

    dv = summed(shortened(p).double().mT @ g)
    assert own.judge(operands, [*results[:3], shortened(dv).to(kind)]) > 1
    in_half = added((p.mT.unsqueeze(-2) * g.mT.unsqueeze(-3)).unflatten(1, (2, 3)).sum(2).to(kind))[..., 0]
    assert own.judge(operands, [*results[:3], in_half]) > 1
