"""Drawing tokens from logits as an operator: its schema, its shape, and what it means (the CPU's kernel, by sorting).

Temperature, top-k and top-p are tensors, so that other values of them compile nothing. The device's kernels are
codegen's.
"""

from __future__ import annotations

from typing import Any

import torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# Of each row of logits [B, V] one token, int64 [B, 1]. uniform: float32 [B] in [0, 1). temperature, top_p: float32,
# top_k: int32 or int64, each [B], or [1] or [] for all rows.
# The order of tokens is by logit, those with equal ones by index. top_k of them count (0: all), of these the fewest
# whose probabilities, softmax(logits / temperature) of those that count, sum up to top_p or more (at least one). The
# token is the first, by index, at which their running sum exceeds uniform times the whole.
# Where the temperature is not positive, or the greatest logit is NaN or infinite, it is torch's argmax.
_SCHEMA = "sample(Tensor logits, Tensor uniform, Tensor temperature, Tensor top_k, Tensor top_p) -> Tensor"


def _shape(logits: Any, uniform: Any, temperature: Any, top_k: Any, top_p: Any) -> torch.Tensor:
    torch._check(logits.dim() == 2, lambda: f"sample: logits have {logits.dim()} dimensions, not 2")
    torch._check(logits.dtype in DTYPES, lambda: f"sample: logits are {logits.dtype}, not one of {DTYPES}")
    rows = logits.shape[0]
    for name, values, whole in (("uniform", uniform, False), ("temperature", temperature, False),
                                ("top_k", top_k, True), ("top_p", top_p, False)):  # fmt: skip
        kinds = (torch.int32, torch.int64) if whole else (torch.float32,)
        torch._check(values.dtype in kinds, lambda n=name, v=values, k=kinds: f"sample: {n} is {v.dtype}, not {k}")
        torch._check(values.dim() <= 1, lambda n=name, v=values: f"sample: {n} has {v.dim()} dimensions, not 1 or 0")
        single = name != "uniform" and (values.dim() == 0 or values.shape[0] == 1)
        if not single:
            torch._check(
                values.dim() == 1 and values.shape[0] == rows,
                lambda n=name, v=values: f"sample: {n} has shape {tuple(v.shape)}, not [{rows}]",
            )
    return logits.new_empty((rows, 1), dtype=torch.int64)


def sample_reference(
    logits: torch.Tensor, uniform: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """``vkinductor.sample`` on the CPU, with sums in float64."""
    rows, length = logits.shape
    parameters = (x.expand(rows) for x in (temperature, top_k, top_p))
    tokens = logits.argmax(-1)
    for row, (t, k, p) in enumerate(zip(*(x.tolist() for x in parameters), strict=True)):
        largest = logits[row, tokens[row]]
        if t > 0 and bool(largest.isfinite()):
            weights = torch.exp((logits[row].double() - largest) / t)
            order = logits[row].sort(descending=True, stable=True).indices
            order = order[: k if 0 < k < length else length]
            if p < 1:
                sums = weights[order].cumsum(0)
                order = order[: max(1, int((sums < p * sums[-1]).sum()) + 1)]
            order = order.sort().values
            sums = weights[order].cumsum(0)
            place = torch.searchsorted(sums, uniform[row].double() * sums[-1], right=True)
            tokens[row] = order[min(int(place), len(order) - 1)]
    return tokens[:, None]


def _declare() -> torch.library.Library:
    library = torch.library.Library("vkinductor", "FRAGMENT")
    library.define(_SCHEMA)
    torch.library.register_fake("vkinductor::sample", _shape, lib=library)
    library.impl("sample", sample_reference, "CPU")
    return library


_LIBRARY = _declare()

sample = torch.ops.vkinductor.sample.default
