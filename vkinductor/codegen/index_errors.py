"""Reporting indices out of range (``options={"check_bounds": True}``).

A kernel that finds one writes which launch, which check, index and size into a small buffer, the first one wins, and
goes on with the index clamped. The program reads the buffer when it has launched all its kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from vkinductor.runtime.errors import IndexOutOfBoundsError

# The buffer's words: 1 + 64 * launch + check (0 as long as nothing was wrong), then index and size, low word first.
WORDS = 5
_CHECKS = 64  # of one kernel; later ones are reported as the last


@dataclass
class Check:
    """One index of a kernel. ``symbol``: its GLSL name; ``buffers``: those that it addresses."""

    symbol: str
    buffers: list[str] = field(default_factory=list)


def statement(number: int, index: str, size: str) -> str:
    """GLSL that reports ``index`` unless it is within ``size``; both are of one integer type."""
    code = f"ARG.launch * {_CHECKS}u + {min(number, _CHECKS - 1) + 1}u"
    words = [f"uint({index})", f"uint(int64_t({index}) >> 32)", f"uint({size})", f"uint(int64_t({size}) >> 32)"]
    stores = " ".join(f"index_errors.d[{i}] = {word};" for i, word in enumerate(words, 1))
    return (
        f"if ({index} < 0 || {index} >= {size}) {{ "
        f"if (atomicCompSwap(index_errors.d[0], 0u, {code}) == 0u) {{ {stores} }} }}"
    )


def index_error_buffer() -> torch.Tensor:
    """A buffer without a report."""
    return torch.zeros(WORDS, dtype=torch.int32, device="vulkan")


def report_indices(buffer: torch.Tensor, launches: list[tuple[str, str, list[list[str]]]]) -> None:
    """Wait for the device; raise IndexOutOfBoundsError when a kernel has reported an index.

    launches: kernel, source line, and the buffers of each check, by launch.
    """
    words = [word & 0xFFFFFFFF for word in buffer.cpu().tolist()]
    if not words[0]:
        return
    buffer.zero_()
    launch, check = divmod(words[0] - 1, _CHECKS)
    kernel, where, checks = launches[launch]
    buffers = " and ".join(checks[check]) or "a buffer"
    index, size = _signed(words[1], words[2]), _signed(words[3], words[4])
    raise IndexOutOfBoundsError(
        f"kernel {kernel}: index {index} of {buffers} is not in 0..{size - 1}"
        + (" (one that counts from the end is given with the size added)" if index < 0 else "")
        + (f"\n  {where}" if where else "")
    )


def _signed(low: int, high: int) -> int:
    value: Any = low | high << 32
    return value - (1 << 64) if high >> 31 else value
