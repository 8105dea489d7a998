"""Whether results are right: against a reference on some rows, and against a result known to be right everywhere."""

from __future__ import annotations

import torch

# Elements compared at a time: in double precision, 32 MB of each.
_CHUNK = 4 << 20


def difference(got: torch.Tensor, want: torch.Tensor, tolerance: tuple[float, float]) -> str | None:
    """What is wrong with ``got``, None when it is right.

    Allowed is tolerance[0] * |want| + tolerance[1] * the root mean square of ``want``; integers have to be equal.
    """
    if got.shape != want.shape:
        return f"its shape is {tuple(got.shape)} instead of {tuple(want.shape)}"
    relative, share = tolerance if want.dtype.is_floating_point else (0.0, 0.0)
    got, want = got.reshape(-1), want.reshape(-1)
    scale = _root_mean_square(want)
    for start in range(0, want.numel(), _CHUNK):
        g, w = got[start : start + _CHUNK].double(), want[start : start + _CHUNK].double()
        # Negated: a NaN is within no tolerance.
        bad = ~((g - w).abs() <= relative * w.abs() + share * scale)
        if bool(bad.any()):
            at = int(bad.nonzero()[0, 0])
            total = int(bad.sum())
            return f"element {start + at} is {g[at].item():.6g} instead of {w[at].item():.6g} ({total} such near it)"
    return None


def _root_mean_square(values: torch.Tensor) -> float:
    if not values.numel():
        return 0.0
    total = sum(float(part.double().square().sum()) for part in values.split(_CHUNK))
    return float((total / values.numel()) ** 0.5)
