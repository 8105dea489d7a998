"""Whether results are right: against a reference on some rows, and against a result known to be right everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

# Elements compared at most. Of more, pieces are, anywhere: so many and so short that some lie in every tile of a
# result, however long its rows are.
_MOST = 4 << 20
_PIECE = 64
# And at a time: they stay in a core's cache, and no other core is waited for, as all may be compiling.
_CHUNK = 1 << 15

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
    wide = torch.float32 if want.dtype in (torch.float16, torch.bfloat16, torch.float32) else torch.float64
    scale = _root_mean_square(want, wide)
    for starts, g, w in _chunks(got, want):
        g, w = g.to(wide), w.to(wide)
        # Negated: a NaN is within no tolerance.
        bad = ~((g - w).abs() <= relative * w.abs() + share * scale)
        if alike:
            bad &= ~((g == w) | (g.isnan() & w.isnan()))
        if bool(bad.any()):
            piece, at = bad.nonzero()[0].tolist()
            values = f"{g[piece, at].item():.6g} instead of {w[piece, at].item():.6g}"
            return f"element {int(starts[piece]) + at} is {values} ({int(bad.sum())} such near it)"
    return None


def _chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """What is compared of tensors of one size: pieces as rows, and behind where they begin. Everything, or pieces, the
    first and the last element among them."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    count = flat[0].numel()
    if count <= _MOST:
        for start in range(0, count, _CHUNK):
            yield torch.tensor([start]), *(values[None, start : start + _CHUNK] for values in flat)
        return
    starts = torch.randint(count - _PIECE, (_MOST // _PIECE,), generator=torch.Generator().manual_seed(0))
    starts[0], starts[-1] = 0, count - _PIECE
    for some in starts.split(_CHUNK // _PIECE):
        yield some, *(values.unfold(0, _PIECE, 1).index_select(0, some) for values in flat)


def _root_mean_square(values: torch.Tensor, wide: torch.dtype) -> float:
    total, count = 0.0, 0
    for _, piece in _chunks(values):
        piece = piece.to(wide)
        total += float(piece.where(piece.isfinite(), torch.zeros((), dtype=wide)).square().sum())
        count += piece.numel()
    return float((total / max(count, 1)) ** 0.5)
