"""Mirrors of CPU tensors: made once, refreshed when the CPU side changes, gone with it, and never growing."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import vkinductor
from vkinductor.offload.mirrors import mirrors

Counted = Callable[..., Any]


def test_weights_cross_once(counted: Counted) -> None:
    torch.compile(nn.Linear(2, 2), backend="vulkan")(torch.ones(1, 2))  # Inductor tries its attention patterns once
    module = nn.Linear(16, 8)
    compiled = torch.compile(module, backend="vulkan", fullgraph=True)
    x = torch.randn(4, 16)
    weights = sum(p.nbytes for p in module.parameters())
    _, first = counted(compiled, x)
    _, same = counted(compiled, x)
    _, fresh = counted(compiled, torch.randn(4, 16))
    assert first["h2d_bytes"] == weights + x.nbytes
    assert same["h2d_bytes"] == 0
    assert fresh["h2d_bytes"] == x.nbytes
    assert fresh["d2h_bytes"] == 4 * 8 * 4


def change_step(module: nn.Linear) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()


CHANGES: dict[str, Callable[[nn.Linear], object]] = {
    "optimizer": change_step,
    "load_state_dict": lambda m: m.load_state_dict(nn.Linear(3, 3).state_dict()),
    "copy_": lambda m: m.weight.detach().copy_(torch.ones(3, 3)),
    "view": lambda m: m.weight.detach()[1].add_(2),
    "new data": lambda m: setattr(m.weight, "data", torch.ones(3, 3)),
    "new parameter": lambda m: setattr(m, "weight", nn.Parameter(torch.ones(3, 3))),
    "init": lambda m: nn.init.constant_(m.weight, 3.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_refreshed_when_changed(change: str) -> None:
    module = nn.Linear(3, 3)
    compiled = torch.compile(module, backend="vulkan", fullgraph=True)
    x = torch.randn(2, 3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), module(x))
        CHANGES[change](module)
    torch.testing.assert_close(compiled(x), module(x))


def test_shared_between_graphs_and_with_views(counted: Counted) -> None:
    weight = torch.randn(8, 8)
    x = torch.randn(2, 8)
    graphs = [torch.compile(f, backend="vulkan", fullgraph=True) for f in (
        lambda x, w: x @ w, lambda x, w: x @ w.t(), lambda x, w: x + w,
    )]  # fmt: skip
    counted(graphs[0], x, weight)
    for run, argument in zip(graphs[1:], (weight, weight[2:4]), strict=True):
        _, stats = counted(run, x, argument)
        assert stats["h2d_bytes"] == 0


def test_small_parts_of_a_storage_are_kept_too(counted: Counted) -> None:
    flat = torch.randn(1000)
    compiled = torch.compile(lambda x, w: x * w, backend="vulkan", fullgraph=True)
    x = torch.randn(10)
    for part in (flat[:10], flat[10:20], flat[:10], flat[10:20]):
        result, stats = counted(compiled, x, part)
        torch.testing.assert_close(result, x * part)
        if part is flat[:10]:
            assert stats["h2d_bytes"] <= 80
    _, stats = counted(compiled, x, flat[10:20])
    assert stats["h2d_bytes"] == 0
    flat.add_(1)
    result, stats = counted(compiled, x, flat[10:20])
    torch.testing.assert_close(result, x * flat[10:20])
    assert stats["h2d_bytes"] == 40


def test_gone_with_the_storage() -> None:
    compiled = torch.compile(lambda x: x.sum(), backend="vulkan", fullgraph=True)
    compiled(torch.ones(8))
    before = vkinductor.memory_stats()["allocated_bytes"]
    big = torch.ones(1 << 20)
    compiled(big)
    assert vkinductor.memory_stats()["allocated_bytes"] >= before + big.nbytes
    del big
    gc.collect()
    assert vkinductor.memory_stats()["allocated_bytes"] <= before + 4096


def test_fresh_activations_do_not_pile_up() -> None:
    compiled = torch.compile(lambda x, w: x * w, backend="vulkan", fullgraph=True)
    weight = torch.ones(1 << 18)
    compiled(torch.ones(1 << 18), weight)
    peaks = []
    for i in range(60):
        compiled(torch.full((1 << 18,), float(i)), weight)
        peaks.append(vkinductor.memory_stats()["reserved_bytes"])
        assert len(mirrors) <= 3
    assert peaks[-1] == peaks[5]


def test_a_thousand_calls_do_not_grow() -> None:
    compiled = torch.compile(lambda x, w: x * w, backend="vulkan", fullgraph=True)
    weight = torch.ones(64)

    def calls(n: int) -> dict[str, int]:
        for i in range(n):
            compiled(torch.full((64,), float(i)), weight)
        return vkinductor.memory_stats()

    first, last = calls(100), calls(900)
    assert last["reserved_bytes"] == first["reserved_bytes"]
    assert last["allocated_bytes"] <= first["allocated_bytes"] + 4096
    assert last["allocations"] <= first["allocations"] + 8


def test_dead_mirrors_go_under_pressure() -> None:
    compiled = torch.compile(lambda x: x + 1, backend="vulkan", fullgraph=True)
    for _ in range(2):
        x = torch.ones(1 << 20)
        for _ in range(2):  # a second use makes the mirror an old one
            compiled(x)
        del x
    gc.collect()
    from vkinductor.runtime import context

    assert len(mirrors)
    callback = context.get().memory.on_pressure
    assert callback is not None
    callback()
    assert not len(mirrors)


def test_views_of_a_mirror_are_bounded() -> None:
    compiled = torch.compile(lambda x: x + 1, backend="vulkan", fullgraph=True, dynamic=False)
    data = torch.arange(1000.0)
    compiled(data[:600])
    for i in range(200):
        torch.testing.assert_close(compiled(data[i : i + 600]), data[i : i + 600] + 1)
    assert max(len(m.views) for m in [*mirrors._old.values(), *mirrors._young.values()]) <= 64


def test_known_weights_are_not_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Linear(4, 4)
    compiled = torch.compile(module, backend="vulkan", fullgraph=True)
    compiled(torch.ones(2, 4))
    asked: list[int] = []
    lend = mirrors.lend
    monkeypatch.setattr(mirrors, "lend", lambda tensors: asked.append(len(tensors)) or lend(tensors))
    x = torch.randn(2, 4)
    compiled(x)
    compiled(x)
    assert asked == [1]
    mirrors.clear()
    torch.testing.assert_close(compiled(x), module(x))
    assert asked == [1, 3]
    module.weight.data = torch.ones(4, 4)  # another storage, the same parameter and version
    torch.testing.assert_close(compiled(x), module(x))


def test_weights_grow_old_without_being_used() -> None:
    compiled = torch.compile(lambda x, w: x * w, backend="vulkan", fullgraph=True)
    weight = torch.ones(8)
    for i in range(4):
        compiled(torch.full((8,), float(i)), weight)
    assert len(mirrors._old) == 1
    assert len(mirrors._young) == 1
