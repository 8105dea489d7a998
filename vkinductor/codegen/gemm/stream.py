"""Stream-K: workgroups that share the steps of blocks which do not fill a wave (Osama et al., "Stream-K: Work-centric
Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU", 2023; its hybrid of two tiles).

Of T blocks and G workgroups that share, the last max(T // G - 1, 0) * G are whole waves and have a workgroup each. The
steps of the first ones, fewer than 2 G, lie in one row, of which each of the G takes an equal piece: the end of a
block, whole blocks, the beginning of another. Who has a part of a block leaves it in memory and is counted; the last to
come adds the parts in the order of their steps and stores. Nobody waits, so no workgroup has to be resident, and the
result does not depend on who came last. Here are the numbers; the kernels' part is matmul_place.glsl.jinja and
matmul_streams.jinja.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch._inductor import lowering
from torch.utils._sympy.functions import FloorDiv

from ..alignment import divides
from ..counters import counters, turn_bytes
from ..template_kernel import VulkanTemplateKernel, realized


def whole(blocks: Any, streams: int) -> Any:
    """Of ``blocks`` (a number or a sympy expression), how many have a workgroup each."""
    if isinstance(blocks, int):
        return max(blocks // streams - 1, 0) * streams
    return sympy.Max(FloorDiv(blocks, streams) - 1, 0) * streams


def groups(blocks: Any, streams: int) -> Any:
    """Workgroups of a product: those that share, and one a block of the rest."""
    return streams + whole(blocks, streams)


def parts_of_a_block(blocks: int, streams: int) -> float:
    """Workgroups that have a part of a shared block, on average; 1.0: each is whole."""
    shared = blocks - whole(blocks, streams)
    return streams / shared + (0.0 if streams % shared == 0 else 1.0)


def scratch(parts_bytes: int, streams: int, device: torch.device) -> list[Any]:
    """Buffers for the parts of blocks, and of counters, one a shared block, that are zero before and after."""
    parts = lowering.empty_strided([parts_bytes // 4], None, dtype=torch.float32, device=device)
    return [realized(parts), counters(2 * streams, device)]


def values(kernel: VulkanTemplateKernel, grain: int, k: Any, streams: int) -> dict[str, Any]:
    """What a template knows of both, which are the last inputs, and of steps of ``grain`` terms of ``k``."""
    places = len(kernel.inputs) - 2, len(kernel.inputs) - 1
    for place in places:
        kernel.written.add(kernel.args.input(kernel.inputs[place].get_name()))
    # Products that share nothing else do not wait for each other's counters: 128x4096x16384 in 56 us instead of 92,
    # 64x4096x4096 in 13 instead of 25 (float16, H200).
    kernel.takes_turns(places[1], turn_bytes(2 * streams))
    parts, counts = map(kernel.address, places)
    return {"parts_address": parts, "counts_address": counts, "k_whole": divides(grain, k)}
