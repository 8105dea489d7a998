"""Tokens drawn by the device's kernels, on each of their three ways, against the CPU's, which sorts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from compiled import compiled, dispatches

import vkinductor
from vkinductor.codegen import heuristics
from vkinductor.device.sampling import sample, sample_reference

ROWS = 8
NAN, INF = float("nan"), float("inf")

# temperature, top_k, top_p, and how far apart logits are: few tokens that count are sorted, many are not.
CASES = [
    (0.0, 0, 1.0, 4.0),
    (1.0, 0, 1.0, 4.0),
    (1.0, 0, 1.0, 0.1),
    (0.7, 1, 1.0, 4.0),
    (0.7, 40, 1.0, 4.0),
    (1.3, 0, 0.9, 4.0),
    (0.7, 50, 0.9, 4.0),
    (1.0, 3000, 1.0, 0.5),
    (1.0, 0, 0.9, 0.5),
    (1.0, 3000, 0.9, 0.5),
    (1.0, 4400, 0.99999, 8.0),
    (100.0, 0, 0.5, 4.0),
    (1e-3, 10, 0.5, 4.0),
    (1.0, 0, 0.0, 4.0),
]


def parameters(temperature: float, top_k: int, top_p: float) -> tuple[torch.Tensor, ...]:
    return torch.tensor([float(temperature)]), torch.tensor([top_k], dtype=torch.int32), torch.tensor([float(top_p)])


def hold(function: Callable[..., torch.Tensor], logits: torch.Tensor, uniform: torch.Tensor, *rest: Any) -> None:
    """The same tokens, where the sum of probabilities is not within rounding of ``uniform``."""
    got = function(*(x.to("vulkan") for x in (logits, uniform, *rest))).cpu()
    assert (got.shape, got.dtype) == ((len(logits), 1), torch.int64)
    near = [sample_reference(logits, (uniform + d).clamp(0, 1), *rest) for d in (0, -2e-5, 2e-5)]
    assert bool((near[0] == got).float().mean() >= 0.9)
    assert bool(torch.stack([n == got for n in near]).any(0).all()), (got, near[0])


def test_every_way() -> None:
    """Three slices a row, of which the last is not full; eager, which compiles once for all tests here."""
    hold(sample, torch.randn(ROWS, 4500).half(), torch.rand(ROWS), *parameters(1, 0, 1))
    vkinductor.reset_stats()
    for temperature, top_k, top_p, apart in CASES:
        logits = (torch.randn(ROWS, 4500) * apart).half()
        hold(sample, logits, torch.rand(ROWS), *parameters(temperature, top_k, top_p))
    stats = vkinductor.stats()
    assert (stats["kernels_compiled"], stats["fallbacks"]) == (0, {})  # other values compile nothing


def test_two_dispatches() -> None:
    logits = torch.randn(ROWS, 4500, device="vulkan", dtype=torch.float16)
    rest = (x.to("vulkan") for x in parameters(1, 0, 0.5))
    assert dispatches(sample, logits, torch.rand(ROWS, device="vulkan"), *rest) == 2


def test_equal_logits_in_order_of_index() -> None:
    logits = torch.zeros(ROWS, 4500).half()
    logits[:, 7::1000] = 3
    logits[:, 8] = 2
    for top_k, top_p in ((3, 1.0), (6, 0.5), (6, 1.0), (7, 1.0), (2000, 1.0), (0, 0.02), (0, 0.5)):
        hold(sample, logits, torch.linspace(0, 0.999, ROWS), *parameters(1, top_k, top_p))


def test_ends_of_uniform() -> None:
    """0 and the float before 1 give tokens that may be drawn: none that is masked."""
    logits = torch.full((ROWS, 4500), -INF).half()
    logits[:, 100:4000] = torch.randn(3900).half()
    uniform = torch.tensor([0.0, 1 - 2**-24]).repeat(ROWS // 2)
    for values in ((1.0, 0, 1.0), (1.0, 20, 1.0), (1.0, 0, 0.3), (1.0, 2500, 1.0)):
        rest = parameters(*values)
        got = sample(*(x.to("vulkan") for x in (logits, uniform, *rest))).cpu()
        assert bool(logits.gather(1, got).isfinite().all())
        assert torch.equal(got, sample_reference(logits, uniform, *rest))


def test_no_finite_best_is_an_argmax() -> None:
    logits = torch.randn(ROWS, 4500).half()
    logits[0, 4000:4002] = NAN
    logits[1, 3000:3002] = INF
    logits[2] = -INF
    got = sample(*(x.to("vulkan") for x in (logits, torch.rand(ROWS), *parameters(1, 5, 0.9)))).cpu()
    assert torch.equal(got[:3, 0], logits[:3].argmax(-1))


def test_a_hundred_times_the_same() -> None:
    uniform = torch.rand(ROWS)
    for values, apart in (((1.0, 0, 1.0), 4.0), ((1.0, 50, 0.9), 4.0), ((1.0, 0, 0.9), 0.5)):
        args = [x.to("vulkan") for x in ((torch.randn(ROWS, 4500) * apart).half(), uniform, *parameters(*values))]
        first = sample(*args).cpu()
        assert all(torch.equal(sample(*args).cpu(), first) for _ in range(100))


def test_the_distribution() -> None:
    """Chi-square of 1024 draws with fixed numbers; 7 degrees of freedom exceed 30 once in 10,000 times."""
    logits = torch.full((4500,), -20.0)
    chosen = torch.arange(8) * 600
    logits[chosen] = torch.linspace(-1, 1.5, 8)
    numbers = torch.rand(128, ROWS, generator=torch.Generator().manual_seed(1))
    rows, rest = logits.half().expand(ROWS, -1).to("vulkan"), [x.to("vulkan") for x in parameters(0.8, 8, 1)]
    tokens = torch.cat([sample(rows.contiguous(), u.to("vulkan"), *rest).cpu() for u in numbers])
    counts = (tokens == chosen).sum(0)
    expected = (logits[chosen].half().float() / 0.8).softmax(0) * numbers.numel()
    assert int(counts.sum()) == numbers.numel()
    assert float(((counts - expected) ** 2 / expected).sum()) < 30


def test_other_layouts() -> None:
    """More lanes than a CPU driver takes, fewer logits sorted, rows that are strided and have no wide loads, and
    parameters of each row."""
    function = compiled(lambda *args: sample(*args))
    rest = [torch.tensor([row[i] for row in CASES]) for i in range(3)]
    apart = torch.tensor([row[3] for row in CASES])
    logits = torch.randn(5003, len(CASES)).T * apart[:, None]
    with heuristics.override(sample_lanes=512, sample_capacity=64, batch=4):
        for _ in range(3):
            hold(function, logits, torch.rand(len(CASES)), *rest)


def test_rows_that_vary_after_other_operators() -> None:
    def last(x: torch.Tensor, uniform: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return sample(x[:, -1] * 2, uniform, *rest) + 1

    function = compiled(last, dynamic=True)
    for rows in (3, 5):
        x, uniform = torch.randn(rows, 2, 300).bfloat16(), torch.rand(rows)
        rest = torch.tensor(0.9), torch.tensor(20), torch.tensor(0.8)
        got = function(*(v.to("vulkan") for v in (x, uniform, *rest))).cpu()
        assert torch.equal(got, sample_reference(x[:, -1] * 2, uniform, *rest) + 1)
