"""Rows of weights in GGUF's block formats for tests: random integers, scales of the size that models have. No tests."""

from __future__ import annotations

import numpy as np
import torch

from vkinductor.device.quantized import FORMATS, Format

BY_NAME: dict[str, Format] = {f.name: f for f in FORMATS.values()}
# Byte offsets of the halves that scale a block.
SCALES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
# What makes weights about as large as inputs are in a network: scales of blocks of 256 have further ones under them.
SIZE = {32: 2e-2, 256: 1e-3}


def blocks(name: str, rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """uint8 [rows, bytes of columns weights]."""
    entry = BY_NAME[name]
    rng = np.random.default_rng(seed)
    shape = rows, columns // entry.elements
    data = rng.integers(0, 256, (*shape, entry.nbytes), np.uint8)
    for place in SCALES[name]:
        scales = (rng.standard_normal((*shape, 1)) * SIZE[entry.elements]).astype("<f2")
        data[:, :, place : place + 2] = scales.view(np.uint8)
    return torch.from_numpy(data.reshape(rows, -1))
