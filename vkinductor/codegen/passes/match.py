"""What a pass says of a pattern that it has found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Match:
    """A pattern found. ``missed``: why it was left as it is; "" where it was replaced. ``node``: the name of the FX
    node that stands for it, before."""

    pattern: str
    node: str
    missed: str = ""
