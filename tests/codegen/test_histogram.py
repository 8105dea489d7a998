"""torch.histc, compiled and eager: edges, values outside, ranges of the data, dtypes that the CPU lacks."""

from __future__ import annotations

import pytest
import torch
from compiled import check

import vkinductor

NAN, INF = float("nan"), float("inf")
EDGES = torch.tensor([0.0, 0.25, 0.5, 1.0, 1.0, -0.1, 1.1, NAN, INF, -INF, 0.9999])


@pytest.mark.parametrize(("bins", "low", "high"), [(4, 0, 1), (3, 0.0, 0.9), (1, -1, 2)])
def test_given_range(bins, low, high):
    check(lambda x: torch.histc(x, bins, low, high), EDGES)


@pytest.mark.parametrize(
    "values", [torch.randn(37, 5), torch.full((6,), 3.0), torch.empty(0)], ids=["random", "equal", "empty"]
)
def test_range_of_the_data(values):
    check(lambda x: torch.histc(x, 7), values)


def test_experts_of_tokens():
    """Integers, which the CPU refuses: transformers counts the tokens of each expert so."""
    experts = torch.randint(0, 6, (50,), dtype=torch.int32)
    check(lambda x: torch.histc(x, 6, 0, 5), experts, expected=torch.bincount(experts, minlength=6).int())


def test_sizes_that_vary():
    counted = torch.compile(lambda x: torch.histc(x, 5, -2, 2), backend="vulkan", fullgraph=True, dynamic=True)
    for length in (9, 130, 1):
        x = torch.randn(length)
        assert torch.equal(counted(x), torch.histc(x, 5, -2, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_eager(dtype):
    x = torch.randn(3, 50).to(dtype)
    vkinductor.reset_stats()
    result = torch.histc(x.to("vulkan"), 8, -1, 1)
    out = torch.empty(8, dtype=dtype, device="vulkan")
    torch.histc(x.to("vulkan"), 8, -1, 1, out=out)
    assert vkinductor.stats()["fallbacks"] == {}
    assert result.dtype == dtype
    want = torch.histc(x.float() if dtype == torch.float16 else x, 8, -1, 1).to(dtype)
    assert torch.equal(result.cpu(), want)
    assert torch.equal(out.cpu(), want)
