"""Tokens drawn from logits (vkinductor.sample), against the CPU's, which sorts."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vkinductor.codegen import heuristics
from vkinductor.device.sampling import sample, sample_reference
from vkinductor.runtime.deviceinfo import DeviceInfo

from ..layouts import LAYOUTS
from ..program import Axes, Draw, Family, Program
from ..sizes import Sizes, Span
from .products import SINGLES, on_gpu, options

# temperature, top_k, top_p, how far apart logits are
_CASES = (
    (0.0, 0, 1.0, 4.0), (1.0, 0, 1.0, 4.0), (1.0, 0, 1.0, 0.1), (0.7, 1, 1.0, 4.0), (0.7, 40, 1.0, 4.0),
    (1.3, 0, 0.9, 4.0), (0.7, 50, 0.9, 4.0), (1.0, 3000, 1.0, 0.5), (1.0, 0, 0.9, 0.5), (1e-3, 10, 0.5, 4.0),
    (1.0, 0, 0.0, 4.0), (100.0, 0, 0.5, 4.0),
)  # fmt: skip


def _sample(layout: Mapping[str, Any], dtype: torch.dtype, x: str, length: Span, sizes: str) -> Program:
    def operands(sizes: Sizes, g: Draw) -> list[Any]:
        rows = sizes["rows"]
        cases = [_CASES[int(i)] for i in torch.randint(0, len(_CASES), (rows,), generator=g)]
        temperature, top_k, top_p, apart = (torch.tensor([c[i] for c in cases]) for i in range(4))
        logits = torch.randn(rows, sizes["tokens"], generator=g) * apart[:, None]
        uniform = torch.rand(rows, generator=g)
        return [LAYOUTS[x](logits.to(dtype)), uniform, temperature, top_k, top_p]

    def judge(operands: Sequence[Any], got: torch.Tensor) -> float:
        """The CPU's token, or one next to it where a sum of probabilities is within rounding of what decides."""
        logits, uniform, temperature, top_k, top_p = operands
        right = torch.zeros(got.shape, dtype=torch.bool)
        for d in (0.0, -2e-5, 2e-5):
            for e in (0.0, -2e-5, 2e-5):
                other = sample_reference(logits, (uniform + d).clamp(0, 1), temperature, top_k, top_p + e * (top_p < 1))
                right |= other == got.cpu()
        return 0.0 if bool(right.all()) else math.inf

    spans = {"rows": Span(1, 9), "tokens": length}
    return Program(
        lambda *operands: sample(*operands), operands, judge, spans,
        functools.partial(heuristics.override, **layout), dynamic=sizes == "vary", together=2,
    )  # fmt: skip


def _axes(info: DeviceInfo) -> Axes:
    layouts: dict[str, Any] = {"chosen": {}, "small": {"sample_lanes": 512, "sample_capacity": 64, "batch": 4}}
    lengths = {"short": Span(2, 130, edges=(64, 128)), "long": Span(500, 5000, edges=(2048, 4096))}
    lengths |= {"longer": Span(30000, 130000)} if on_gpu(info) else {}
    return {
        "layout": layouts,
        "dtype": SINGLES,
        "x": options("rows", "offset", "padded", "columns"),
        "length": lengths,
        "sizes": options("fixed", "vary"),
    }


FAMILIES = (Family("sampling", _axes, _sample),)
