"""The attention of a decode step (vkinductor.attention_step): norms of heads, rotary, the cache's write, attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vkinductor.codegen import heuristics
from vkinductor.codegen.attention.step_tiles import StepTile
from vkinductor.device.attention_step import attention_step, attention_step_composed
from vkinductor.runtime.deviceinfo import DeviceInfo

from ..errors import SINGLE, doubled, of_sum, ratio, rounding
from ..program import Axes, Draw, Family, Program
from ..sizes import Sizes, Span
from .products import SINGLES, on_gpu, options


def _step(
    tile: StepTile | None, dtype: torch.dtype, heads: tuple[int, int], widths: tuple[int, int], rotary: str, extra: str,
    length: Span, combines: bool,
) -> Program | None:  # fmt: skip
    queries, groups = heads
    width, width_v = widths
    if length.high * queries // groups > 32:
        return None

    def operands(sizes: Sizes, g: Draw) -> list[Any]:
        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=g).to(dtype)

        new, keys = sizes["length"], sizes["keys"] + sizes["length"]
        position = int(torch.randint(0, keys - new + 1, (), generator=g))
        made: list[Any] = [random(2, new, n, w).transpose(1, 2)
                           for n, w in ((queries, width), (groups, width), (groups, width_v))]  # fmt: skip
        made += [random(2, groups, keys, w) for w in widths]
        made.append(torch.tensor([position]))
        turned = {"none": 0, "half": width // 2 // 2 * 2}.get(rotary, width)
        angles = (position + torch.arange(new))[:, None] * torch.rand(max(1, turned // 2), generator=g)
        angles = torch.cat((angles, angles), -1)[None]
        made += [angles.cos().to(dtype), angles.sin().to(dtype)] if turned else [None, None]
        norms = [torch.rand(width, generator=g).to(dtype) for _ in range(2)] if extra == "norms" else [None, None]
        mask = torch.rand(2, 1, new, keys, generator=g) > 0.3 if extra == "mask" else None
        start = torch.tensor([0, position // 2]) if extra == "padding and window" else None
        slopes = torch.rand(queries, generator=g) if extra == "slopes and soft cap" else None
        return [*made, *norms, mask, start, slopes]

    named: dict[str, Any] = {"interleaved": rotary == "interleaved"}
    named |= {"window": 9} if extra == "padding and window" else {}
    named |= {"softcap": 5.0} if extra == "slopes and soft cap" else {}
    named |= {"eps": 1e-6} if extra == "norms" else {}
    scale = width**-0.5

    def function(*arguments: Any) -> Any:
        out = attention_step(*arguments, scale, **named)
        return out, arguments[3], arguments[4]

    def judge(operands: Sequence[Any], got: Any) -> float:
        wide = doubled([x.clone() if isinstance(x, torch.Tensor) else x for x in operands])
        arguments: Any = [*wide, scale]
        want = attention_step_composed(*arguments, **named)
        # Rows of q and k are rounded after norms and rotary; weights of keys sum up to one.
        size = operands[4].double().abs().amax() + operands[2].double().abs().amax()
        dot = float(wide[0].norm(dim=-1).max() * wide[3].norm(dim=-1).max() * scale)
        own = rounding(dtype) if dtype != torch.float32 else 0.0
        off = (of_sum(width) + 4 * own) * max(dot, 1.0) + 64 * SINGLE
        found = [ratio(got[0], want, rounding(dtype) * want.abs() + off * size)]
        for result, cache, wrote in zip(got[1:], wide[3:5], (1, 0), strict=True):
            near = 4 * wrote * (rounding(dtype) * cache.abs().clamp(min=1.0)) + rounding(dtype) * cache.abs()
            found.append(ratio(result, cache, near))
        return max(found)

    spans = {"length": length, "keys": Span(1, 130, edges=(16, 32, 64, 128))}
    return Program(
        function, operands, judge, spans,
        lambda: heuristics.override(attention_step=tile, attention_step_combines=combines), together=1,
    )  # fmt: skip


def _axes(info: DeviceInfo) -> Axes:
    tiles = {"16x1x4": StepTile(16, 1, 4, early=True, ahead=1, lent=True), "16x1x1": StepTile(16, 1, 1), "chosen": None}
    widths = {"16": (16, 16), "32 and 16": (32, 16), "20 and 12": (20, 12)}
    if on_gpu(info):
        ahead = StepTile(64, 2, 4, early=True, ahead=2, lent=True)
        tiles = {"64x2x4": ahead, "128x1x8": StepTile(128, 1, 8), "chosen": None}
        widths |= {"64": (64, 64), "128": (128, 128), "256": (256, 256)}
    return {
        "tile": tiles,
        "dtype": SINGLES,
        "heads": {"4 of 4": (4, 4), "4 of 2": (4, 2), "6 of 2": (6, 2), "8 of 1": (8, 1)},
        "widths": widths,
        "rotary": options("none", "half", "whole", "interleaved"),
        "extra": options("none", "norms", "mask", "padding and window", "slopes and soft cap"),
        "length": {"1": Span(1, 1), "2-8": Span(2, 8)},
        "combines": {"inside": True, "after": False},
    }


FAMILIES = (Family("attention, decode step", _axes, _step),)
