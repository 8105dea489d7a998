"""Problems of attention and how they are checked: in double precision, by the CPU. Owns no tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from compiled import compiled, on_device, same

from vkinductor.codegen import heuristics
from vkinductor.codegen.attention.tiles import WorkgroupTile
from vkinductor.device import attention

# Small, so that a problem has several blocks of rows and of keys.
EMULATED = WorkgroupTile(bq=16, bk=16, threads=32, emulated=True)
LAZY = WorkgroupTile(bq=16, bk=16, threads=32, emulated=True, lazy=True, early=True, peel=True)
TOLERANCES = {
    torch.float32: {"atol": 2e-6, "rtol": 1e-5},
    torch.float16: {"atol": 2e-3, "rtol": 2e-3},
    torch.bfloat16: {"atol": 1.6e-2, "rtol": 1.6e-2},
}


@contextlib.contextmanager
def whole(**forced: Any) -> Iterator[None]:
    """Attention stays whole inside, also on a CPU driver; ``forced``: see heuristics.override. The backward, too, is
    compiled by the calling thread."""
    with (
        attention.whole(),
        heuristics.override(**forced),
        torch.autograd.set_multithreading_enabled(False),
    ):
        yield


def heads(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random operands [B, H, L, D]."""
    return torch.randn(sizes).to(dtype)


def sdpa(q: Any, k: Any, v: Any, mask: Any = None, **options: Any) -> torch.Tensor:
    """torch's operator; heads of queries may share those of keys."""
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True, **options)


def _double(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def check(f: Any, *args: Any, **options: Any) -> torch.Tensor:
    """Compile ``f``, run it on the device, compare with the CPU in double precision."""
    dtype = args[0].dtype
    want = f(*map(_double, args)).to(dtype)
    got = compiled(f, **options)(*on_device(args))
    same(got, want, **TOLERANCES[dtype])
    return got


def check_gradients(f: Any, *args: Any, run: Any = None) -> None:
    """Compare result and gradients of the first three arguments; ``run``: in the place of ``f`` compiled."""
    dtype = args[0].dtype
    upstream = torch.randn_like(f(*args))
    want = _gradients(f, [_double(a) for a in args], _double(upstream))
    got = _gradients(compiled(f) if run is None else run, on_device(args), upstream.to("vulkan"))
    scale = {torch.float32: 4, torch.float16: 4, torch.bfloat16: 4}[dtype]
    limits = {name: value * scale for name, value in TOLERANCES[dtype].items()}
    same(got, [w.to(dtype) for w in want], **limits)


def _gradients(f: Any, args: list[Any], upstream: torch.Tensor) -> list[torch.Tensor]:
    leaves = [a.detach().requires_grad_() for a in args[:3]]
    out = f(*leaves, *args[3:])
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]
