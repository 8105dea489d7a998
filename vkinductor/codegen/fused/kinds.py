"""What the kernel takes of a row of weights at a time, dense or in blocks, as the template sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from vkinductor.device.fused_linear import DENSE

from ..alignment import vector_width
from ..quantized.chunks import Chunk, chunk, function
from ..quantized.formats import packing
from ..vectors import elements, load_type, narrowest
from ..wide_loads import loads


@dataclass(frozen=True)
class Kind:
    """Weights that the same GLSL reads: those of the operator's ``format``. A dense chunk is a load of ``width``."""

    format: int
    dtype: torch.dtype
    width: int
    parts: list[int] = field(default_factory=list, compare=False)

    @property
    def chunk(self) -> Chunk:
        """Which weights a chunk holds."""
        if self.format != DENSE:
            return chunk(packing(self.format))
        return Chunk(f"c * {self.width}", (0,), self.width, 1)

    def values(self, k: int, lanes: int, count: int, x: Any, gain: Any, shift: Any) -> dict[str, Any]:
        """What the template knows of it, for rows of ``k`` weights that ``lanes`` split, ``count`` chunks a pass."""
        piece, dense = self.chunk, self.format == DENSE
        chunks = k // piece.weights
        passes, rest = divmod(chunks, lanes * count)
        values = {
            "parts": self.parts,
            "load": "" if dense else function(packing(self.format)),
            "type": load_type(self.dtype, self.width) if dense else "",
            "elements": lambda name: elements(self.dtype, self.width, name),
            "weights": piece.weights,
            "scales": piece.scales,
            "base": piece.base,
            "places": [run + i for run in piece.runs for i in range(piece.length)],
            "chunks": chunks,
            "passes": passes,
            "rest": -(-rest // lanes),
            "rest_whole": rest // lanes,
        }
        for name, operand in (("x", x), ("gain", gain), ("shift", shift)):
            if operand is not None:
                of = loads(operand, piece.length)
                values |= {f"{name}_width": of.width, f"{name}_type": of.type, f"{name}_elements": of.elements}
        return values


def kind_of(weight: Any, number: int) -> Kind:
    """How ``weight`` in memory is read."""
    if number != DENSE:
        return Kind(number, torch.uint8, 1)
    dtype = weight.get_dtype()
    return Kind(DENSE, dtype, narrowest(dtype, vector_width(weight, 1)))
