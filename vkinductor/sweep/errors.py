"""How far a result may be off: bounds by element, from the sizes of what is summed.

A dtype's rounding is half a unit in the last place of each result. Sums are those of float32 whatever the operands are,
so that one in float16 would show where terms cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

# dtype -> half the distance of 1 and the next number.
ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24, torch.float64: 2.0**-53}
# What is lost below the smallest normal number: subnormals of half precision may be flushed in conversions.
TINY = {torch.float16: 2.0**-24, torch.bfloat16: 1e-37, torch.float32: 1e-37, torch.float64: 1e-37}

SINGLE = ROUNDING[torch.float32]


def rounding(dtype: torch.dtype) -> float:
    """Of a result of ``dtype``, relative; 0 for integers."""
    return ROUNDING.get(dtype, 0.0)


def of_sum(terms: int, dtype: torch.dtype = torch.float32) -> float:
    """What a sum of ``terms`` may be off by, relative to the sum of their sizes: more than rounding errors of random
    signs add up to (their square root), less than in the worst case. Matrix hardware truncates where it adds."""
    return (8 + 4 * math.sqrt(terms)) * (ROUNDING[dtype] if dtype == torch.float64 else SINGLE)


def doubled(values: Any) -> Any:
    """``values`` with floats in double precision."""
    return tree_map_only(torch.Tensor, lambda t: t.double() if t.dtype.is_floating_point else t, values)


def ratio(got: torch.Tensor, want: torch.Tensor, allowed: torch.Tensor | float) -> float:
    """The largest error in units of what is ``allowed``; infinite where something is not finite, or an integer off."""
    got, want = got.detach().cpu(), want.detach()
    if got.shape != want.shape:
        raise AssertionError(f"the result has shape {tuple(got.shape)}, not {tuple(want.shape)}")
    if not got.numel():
        return 0.0
    if not got.dtype.is_floating_point:
        return 0.0 if torch.equal(got, want.to(got.dtype)) else math.inf
    same = (got == want.to(got.dtype)) | (got.isnan() & want.isnan())  # infinite where the dtype ends, too
    got, want = got.double(), want.double()
    error = (got - want).abs() / torch.as_tensor(allowed, dtype=torch.float64).clamp(min=1e-300)
    return float(torch.where(same, 0.0, error).nan_to_num(nan=math.inf).max())


def judged(
    reference: Callable[..., Any], allowed: Callable[[Sequence[Any], list[torch.Tensor]], Sequence[Any]]
) -> Callable[[Sequence[Any], Any], float]:
    """How far results are off what ``reference`` gives in double precision, in units of what is ``allowed`` (operands
    in double precision, results) beside the rounding of each result to its dtype."""

    def judge(operands: Sequence[Any], got: Any) -> float:
        wide = doubled(list(operands))
        wants = [w for w in tree_flatten(reference(*wide))[0] if isinstance(w, torch.Tensor)]
        gots = [g for g in tree_flatten(got)[0] if isinstance(g, torch.Tensor)]
        if len(wants) != len(gots):
            raise AssertionError(f"{len(gots)} results, not {len(wants)}")
        found = [0.0]
        for g, want, limit in zip(gots, wants, allowed(wide, wants), strict=True):
            own = rounding(g.dtype) * want.detach().double().abs() + TINY.get(g.dtype, 0.0)
            found.append(ratio(g, want, own + limit))
        return max(found)

    return judge


def exactly(reference: Callable[..., Any]) -> Callable[[Sequence[Any], Any], float]:
    """Whether results are those of ``reference`` on the CPU, to the bit but for NaN's."""

    def judge(operands: Sequence[Any], got: Any) -> float:
        # Of contiguous copies: torch's own median of an expanded tensor reads beside it (2.13, CPU).
        plain = [x.contiguous().clone() if isinstance(x, torch.Tensor) else x for x in operands]
        wants = tree_flatten(reference(*plain))[0]
        gots = tree_flatten(got)[0]
        if [(g.shape, g.dtype) for g in gots] != [(w.shape, w.dtype) for w in wants]:
            raise AssertionError(f"results {[(g.shape, g.dtype) for g in gots]}")
        same = all(torch.equal(g.cpu().nan_to_num(7.0), w.nan_to_num(7.0)) if w.is_floating_point()
                   else torch.equal(g.cpu(), w) for g, w in zip(gots, wants, strict=True))  # fmt: skip
        return 0.0 if same else math.inf

    return judge
