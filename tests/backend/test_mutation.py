"""Graphs that write their inputs: written back once, through views and aliases, with and without autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vkinductor.offload.writes import written
from vkinductor.runtime.errors import VulkanError

Agree = Callable[..., Any]


def test_kv_cache(agree: Agree, counted: Agree) -> None:
    def f(cache: torch.Tensor, k: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, at, k)
        cache[0, 3:4] = k[0, :1]
        return cache.sum((1, 2))

    def make() -> tuple[torch.Tensor, ...]:
        return torch.zeros(2, 8, 3), torch.randn(2, 2, 3), torch.tensor([1, 6])

    compiled, (cache, k, at) = agree(f, make, calls=2)
    version = cache._version
    _, stats = counted(compiled, cache, k, at)
    assert stats["h2d_bytes"] == 0  # what was written back is what the mirror holds
    assert cache._version == version + 1
    assert stats["d2h_bytes"] == cache.nbytes + 8


def test_in_place_pointwise(agree: Agree) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.relu_()
        y.mul_(x).add_(1)
        return x + y

    agree(f, lambda: (torch.randn(3, 4), torch.randn(4, 3).t()), calls=2)


def test_written_view_of_an_input(agree: Agree) -> None:
    def f(x: torch.Tensor) -> None:
        x.t()[1:3].view(-1, 2)[0].fill_(7)

    agree(f, lambda: (torch.randn(2, 4).t().contiguous().t(),))


def test_inputs_that_overlap(agree: Agree) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        b.mul_(2)
        return a + b

    def make() -> tuple[torch.Tensor, ...]:
        base = torch.arange(12.0)
        return base[:8], base[4:]

    agree(f, make, calls=3)


def test_small_inputs_that_overlap_in_a_large_storage(agree: Agree) -> None:
    def make() -> tuple[torch.Tensor, ...]:
        base = torch.arange(1000.0)
        return base[:8], base[4:12]

    agree(lambda a, b: (a.add_(1).sum(), b * 2), make, calls=3)


def test_aliases_with_version_counters_of_their_own(agree: Agree) -> None:
    def make() -> tuple[torch.Tensor, ...]:
        x = torch.arange(6.0)
        return x, x.data

    compiled, (a, b) = agree(lambda a, b: (a.add_(1), b * 2)[1], make, calls=3)
    b.mul_(0)
    assert compiled(a, b).tolist() == [2.0] * 6
    a.fill_(4)
    assert compiled(a, b).tolist() == [10.0] * 6


def test_one_tensor_twice(agree: Agree) -> None:
    def make() -> tuple[torch.Tensor, ...]:
        x = torch.randn(3)
        return x, x

    agree(lambda a, b: (a.add_(1), b * 2)[1], make, calls=2)


def test_through_data_and_detach(agree: Agree) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.detach().mul_(2)
        with torch.no_grad():
            x.add_(y)
        return x * y

    agree(f, lambda: (torch.randn(3), torch.randn(3)))


def test_batch_norm_statistics(train: Agree, counted: Agree) -> None:
    module = torch.nn.BatchNorm1d(4)
    twin, compiled = train(module, lambda: (torch.randn(5, 4),), steps=2)
    assert int(twin.num_batches_tracked) == 2
    twin.eval()
    module.eval()
    x = torch.randn(5, 4)
    torch.testing.assert_close(compiled(x), module(x))


def test_gradient_through_a_write(agree: Agree) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.add_(w * w)
        return x.sin()

    w = [torch.full((3,), 2.0, requires_grad=True) for _ in range(2)]
    leaves = [torch.ones(3, requires_grad=True) for _ in range(2)]
    eager_x, mine_x = (leaf * 3 for leaf in leaves)
    f(eager_x, w[0]).sum().backward(retain_graph=True)
    torch.compile(f, backend="vulkan", fullgraph=True)(mine_x, w[1]).sum().backward(retain_graph=True)
    torch.testing.assert_close(mine_x, eager_x)
    eager_x.sum().backward()
    mine_x.sum().backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)
    torch.testing.assert_close(w[1].grad, w[0].grad)


def test_parameter_written_without_grad() -> None:
    def f(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            p.sub_(g, alpha=0.5)
        return p * 2

    p = torch.nn.Parameter(torch.ones(3))
    out = torch.compile(f, backend="vulkan", fullgraph=True)(p, torch.ones(3))
    assert p.is_leaf
    assert p.tolist() == [0.5] * 3
    out.sum().backward()
    assert p.grad is not None
    assert p.grad.tolist() == [2.0] * 3


def test_written_inference_tensor(agree: Agree) -> None:
    with torch.inference_mode():
        agree(lambda x, y: x.add_(1) * y, lambda: (torch.zeros(3), torch.ones(3)), calls=2)


def test_a_failed_call_leaves_inputs_and_mirrors_good(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(lambda x: x.add_(1) * 2, backend="vulkan", fullgraph=True)
    x = torch.zeros(3)
    compiled(x)
    from vkinductor.runtime import context

    def failing(*args: Any, **kwargs: Any) -> None:
        raise VulkanError("no")

    with monkeypatch.context() as patch:
        patch.setattr(context.get().stream, "download", failing)
        with pytest.raises(VulkanError, match="no"):
            compiled(x)
    assert x.tolist() == [1.0] * 3
    assert compiled(x).tolist() == [4.0] * 3
    assert x.tolist() == [2.0] * 3


def test_what_a_graph_writes() -> None:
    from torch._subclasses import FakeTensorMode

    def graph(f: Callable[..., Any]) -> Any:
        return written(torch.fx.symbolic_trace(f), [FakeTensorMode().from_tensor(torch.zeros(2, 3))])

    none: frozenset[int] = frozenset()
    assert graph(lambda x: x.t().add(1)) == none
    assert graph(lambda x: x.t().add_(1)) == {0}
    assert graph(lambda x: x.data.add_(1)) == {0}
    assert graph(lambda x: x.clone().add_(1)) == none
    assert graph(lambda x: x.t_()) == none
    assert graph(lambda x: torch.add(x, 1, out=x)) == {0}
    assert graph(lambda x: torch.nn.functional.batch_norm(x.detach() + 1, x[0], x[1], training=True)) == {0}


def test_other_offsets_are_other_code(agree: Agree) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> Any:
        return a.add_(1).sum(), b * 2

    for size, offset, device in ((12, 4, "cpu"), (12, 2, "cpu"), (12, 4, "vulkan"), (12, 2, "vulkan")):
        torch._dynamo.reset()
        base = torch.arange(float(size), device=device)
        _, doubled = torch.compile(f, backend="vulkan", fullgraph=True)(base[:8], base[offset : offset + 8])
        torch.testing.assert_close(doubled, base[offset : offset + 8] * 2)
