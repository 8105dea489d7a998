"""Whether results are right: against a reference on some rows, and against a result known to be right everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

# Elements compared at a time, and at most. Of more, pieces are: so many that some lie in every tile of a result.
_CHUNK = 4 << 20
_MOST = 16 << 20
_PIECE = 1 << 14

# (relative, share of the root mean square): what rounding a result, and adding up in another order, may change.
ROUNDING = {
    torch.float16: (4e-3, 2e-3),
    torch.bfloat16: (3.2e-2, 4e-3),
    torch.float32: (1e-4, 1e-3),
    torch.float64: (1e-10, 1e-10),
}


def differences(
    got: Sequence[torch.Tensor], want: Sequence[torch.Tensor], tolerance: tuple[float, float] | None
) -> str | None:
    """What is wrong with results, given right ones of the same kernel on the same operands: they may hold NaN, or what
    nothing writes, at the same places. ``tolerance``: as of ``difference``; None: ``ROUNDING``."""
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        allowed = tolerance or ROUNDING.get(w.dtype, (0.0, 0.0))
        wrong = difference(g, w, allowed, alike=True)
        if wrong is not None:
            return wrong if len(want) == 1 else f"in result {i}: {wrong}"
    return None


def difference(
    got: torch.Tensor, want: torch.Tensor, tolerance: tuple[float, float], alike: bool = False
) -> str | None:
    """What is wrong with ``got``, None when it is right.

    Allowed is tolerance[0] * |want| + tolerance[1] * the root mean square of ``want`` (of what is finite in it);
    integers have to be equal. ``alike``: NaN and infinities are right where ``want`` has them, too.
    """
    if got.shape != want.shape:
        return f"its shape is {tuple(got.shape)} instead of {tuple(want.shape)}"
    relative, share = tolerance if want.dtype.is_floating_point else (0.0, 0.0)
    got, want = got.reshape(-1), want.reshape(-1)
    wide = torch.float32 if want.dtype in (torch.float16, torch.bfloat16, torch.float32) else torch.float64
    scale = _root_mean_square(want, wide)
    for start, end in _pieces(want.numel()):
        g, w = got[start:end].to(wide), want[start:end].to(wide)
        # Negated: a NaN is within no tolerance.
        bad = ~((g - w).abs() <= relative * w.abs() + share * scale)
        if alike:
            bad &= ~((g == w) | (g.isnan() & w.isnan()))
        if bool(bad.any()):
            at = int(bad.nonzero()[0, 0])
            total = int(bad.sum())
            return f"element {start + at} is {g[at].item():.6g} instead of {w[at].item():.6g} ({total} such near it)"
    return None


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    """Ranges that are compared: everything, or pieces at equal distances, the first and the last element among them."""
    if count <= _MOST:
        for start in range(0, count, _CHUNK):
            yield start, min(count, start + _CHUNK)
        return
    pieces = _MOST // _PIECE
    for i in range(pieces):
        start = i * (count - _PIECE) // (pieces - 1)
        yield start, start + _PIECE


def _root_mean_square(values: torch.Tensor, wide: torch.dtype) -> float:
    total, count = 0.0, 0
    for start, end in _pieces(values.numel()):
        piece = values[start:end].to(wide)
        total += float(piece.where(piece.isfinite(), torch.zeros((), dtype=wide)).square().sum())
        count += end - start
    return float((total / max(count, 1)) ** 0.5)
