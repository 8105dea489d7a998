"""Whether results are right: against a reference on some rows, and against a result known to be right everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import torch

# Elements compared at a time, and at most. Of more, pieces are: so many that some lie in every tile of a result.
_CHUNK = 4 << 20
_MOST = 16 << 20
_PIECE = 1 << 14


def difference(got: torch.Tensor, want: torch.Tensor, tolerance: tuple[float, float]) -> str | None:
    """What is wrong with ``got``, None when it is right.

    Allowed is tolerance[0] * |want| + tolerance[1] * the root mean square of ``want``; integers have to be equal.
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
        total += float(values[start:end].to(wide).square().sum())
        count += end - start
    return float((total / max(count, 1)) ** 0.5)
