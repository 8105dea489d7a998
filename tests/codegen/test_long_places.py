"""argmax, argmin, max and min with index of few long rows, cut into parts as on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from compiled import check, compiled, dispatches, name_of, on_device, same

import vkinductor
from vkinductor.codegen import heuristics
from vkinductor.codegen.recording import recordings
from vkinductor.runtime.replay.persistent import PersistentProgram

NAN, INF = math.nan, math.inf
# Alike parts, and one that is not full.
LENGTHS = (2048, 2003)


@pytest.fixture(autouse=True)
def in_parts() -> Iterator[None]:
    with heuristics.override(reads_dominate=True, row_with_places=500, fewest_in_part=128):
        yield


def every(x: torch.Tensor) -> tuple[Any, ...]:
    return x.argmax(-1), x.argmin(-1, keepdim=True), x.max(-1), x.min(-1, keepdim=True)


def test_parts() -> None:
    """Within bounds, alike and a multiple of eight where there is such a number nearby."""
    with heuristics.override(reads_dominate=True, row_with_places=16384, fewest_in_part=1024):
        for length, rows, parts in ((128256, 1, 96), (32000, 1, 25), (262144, 1, 128), (50257, 1, 29), (128256, 8, 16)):
            assert heuristics.parts_with_places(length, rows) == parts
        assert heuristics.parts_with_places(16384, 1) == 1
        assert heuristics.parts_with_places(128256, 64) == 1
    with heuristics.override(reads_dominate=False):
        assert heuristics.parts_with_places(262144, 1) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.uint8, torch.int64], ids=name_of)
def test_values_with_ties(dtype: torch.dtype) -> None:
    for length in LENGTHS:
        torch._dynamo.reset()
        check(every, torch.randint(0, 50, (3, length)).to(dtype))


def test_calls_that_share_no_memory_do_not_wait_for_each_other() -> None:
    rows = [torch.randn(2, 2003) for _ in range(3)]
    calls = on_device(rows)
    run = compiled(lambda x: x.argmax(-1), dynamic=False, options={"recording": False})
    for x in calls:
        run(x)
    vkinductor.synchronize()
    before = vkinductor.stats()["barriers"]
    results = [run(x) for x in calls]
    assert vkinductor.stats()["barriers"] == before
    for result, x in zip(results, rows, strict=True):
        same(result, x.argmax(-1))


def test_nan_and_infinities() -> None:
    """The first NaN wins; of nothing but the worst the first; nothing that fills a part up."""
    x = torch.randn(6, 2003)
    x[0, [1400, 700, 1900]] = NAN
    x[1], x[2], x[3] = -INF, INF, NAN
    x[4, :1999] = -INF
    x[5, :1999] = INF
    check(every, x)
    worst = torch.tensor([[torch.iinfo(torch.int32).min], [torch.iinfo(torch.int32).max]], dtype=torch.int32)
    check(every, worst.expand(2, 2003).contiguous())


def test_whole_tensors_and_other_shapes() -> None:
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        whole = x.argmax(), x.argmin(keepdim=True), x[0, 0].argmax(), x[0, 0].argmin(0, keepdim=True)
        return *whole, x[:, -1].argmax(-1), x[..., None].max(2), (x.transpose(0, 1) * 2).min(-1)

    check(f, torch.randint(-90, 90, (2, 3, 2003)).float())
    check(lambda x: x.argmax(1), torch.randn(2, 2003, 3))  # not along neighbours: one kernel


def test_two_kernels_and_what_follows() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value, place = (x * 0.5).max(-1, keepdim=True)
        return value.float() + 1, place * 2

    x = torch.randn(1, 2048).half().to("vulkan")
    function = compiled(f)
    same(function(x), f(x.cpu()))
    assert dispatches(function, x) == 2


def test_places_alone_take_one_kernel() -> None:
    """Of what lies in memory, with what follows; NaN first, of equals the first, of nothing but the worst the first."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.argmax(-1, keepdim=True) + 1, x[..., 1:].argmin(-1)

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for length in LENGTHS:
            torch._dynamo.reset()
            x = torch.randint(-50, 50, (2, 3, length)).to(dtype)
            x[0, 0, [1400, 700, 1900]] = NAN
            x[0, 1], x[0, 2], x[1, 0, ::2] = -INF, INF, -0.0
            function, (given,) = compiled(f), on_device([x])
            for _ in range(3):
                same(function(given), f(x))
            assert dispatches(function, given) == 2


def test_rows_that_vary() -> None:
    function = compiled(every, dynamic=True)
    for rows in (2, 5):
        x = torch.randint(0, 99, (rows, 2003)).float()
        torch._dynamo.mark_static(x, 1)
        same(function(*on_device([x])), every(x))


@pytest.mark.usefixtures("one_kernel")
def test_places_in_a_persistent_kernel() -> None:
    def f(x: Any) -> Any:
        places = x.argmax(-1)
        return places, (x * places[:, None]).argmin(-1)

    x = torch.randn(3, 70000)
    before = recordings()
    function, given = compiled(f, options={"persistent": True}), on_device([x])
    for _ in range(4):
        results = function(*given)
        same(results, f(x))
        for result in results:
            result.fill_(-1)  # what the next call does not write is not right by chance
        del results, result
    (made,) = (r for r in recordings() if r not in before)
    assert isinstance(made.program, PersistentProgram)
