"""Numbers of bytes as people read them."""

from __future__ import annotations


def size(count: int) -> str:
    """A number of bytes in binary units, such as 1.5 MiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
