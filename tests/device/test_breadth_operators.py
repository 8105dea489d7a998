"""Eager operators in every form they are called in: out=, in place, foreach, and through views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import vkinductor


@pytest.fixture(autouse=True)
def without_compiler() -> None:
    """Here operators are compiled, as they are for users."""


X = torch.linspace(-2.0, 2.0, 24).view(4, 6)
Y = torch.linspace(0.5, 1.5, 24).view(4, 6)


def agree(f: Callable[..., Any], *args: Any) -> None:
    """f of copies of args on the device: the same results, the same changes of args, nothing on the CPU."""
    host = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    mine = [a.to("vulkan") if isinstance(a, torch.Tensor) else a for a in args]
    expected = f(*host)
    vkinductor.reset_stats()
    actual = f(*mine)
    assert vkinductor.stats()["fallbacks"] == {}
    leaves = torch.utils._pytree.tree_leaves
    for a, b in zip([*leaves(actual), *mine], [*leaves(expected), *host], strict=True):
        if isinstance(b, torch.Tensor):
            assert a.device.type == "vulkan"
            torch.testing.assert_close(a.cpu(), b, equal_nan=True)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (torch.add, (X, Y)), (torch.mul, (X, 3)), (torch.div, (X, Y)), (torch.exp, (X,)), (torch.clamp, (X, -1, 1)),
        (torch.where, (X > 0, X, Y)), (torch.sum, (X, 1)), (torch.mean, (X, 0)), (torch.amax, (X, 1)),
        (torch.mm, (X, Y.t().contiguous())), (torch.addmm, (X, X @ Y.t(), Y)), (torch.cat, ([X, Y], 1)),
        (torch.stack, ([X, Y],)), (torch.index_select, (X, 0, torch.tensor([2, 0]))), (torch.pow, (Y, X)),
        (torch.tril, (X,)), (torch.eq, (X, Y)), (torch.logical_and, (X, Y)), (torch.lerp, (X, Y, 0.25)),
        (torch.gather, (X, 1, torch.tensor([[0, 5], [1, 2], [3, 3], [4, 0]]))), (torch.softmax, (X, 1)),
        (torch.linalg.vector_norm, (X,)), (torch.sigmoid, (X,)), (torch.round, (X,)), (torch.maximum, (X, Y)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_out(op: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Into an empty tensor, and into every second column of a larger one."""
    expected = op(*args)

    def into_empty(*args: Any) -> Any:
        device = next(t for t in torch.utils._pytree.tree_leaves(args) if isinstance(t, torch.Tensor)).device
        out = torch.empty(0, dtype=expected.dtype, device=device)
        assert op(*args, out=out) is out
        return out

    def into_strided(*args: Any) -> Any:
        device = next(t for t in torch.utils._pytree.tree_leaves(args) if isinstance(t, torch.Tensor)).device
        room = torch.zeros(*expected.shape, 2, dtype=expected.dtype, device=device)
        op(*args, out=room[..., 0])
        return room

    for f in (into_empty, into_strided):
        mine = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to("vulkan"), args)
        vkinductor.reset_stats()
        result = f(*mine)
        assert vkinductor.stats()["fallbacks"] == {}
        torch.testing.assert_close(result.cpu(), f(*args))


@pytest.mark.parametrize(
    "name",
    ["add_", "sub_", "mul_", "div_", "copy_", "maximum", "fmod_", "atan2_", "lt_", "pow_", "floor_divide_"],
)
def test_in_place_of_two(name: str) -> None:
    agree(lambda x, y: getattr(x, name)(y), X, Y)
    agree(lambda x, y: getattr(x.t(), name)(y.t()), X, Y)
    agree(lambda x, y: getattr(x[:, ::2], name)(y[:, 1::2]), X, Y)
    agree(lambda x, y: getattr(x, name)(y[0]), X, Y)


@pytest.mark.parametrize(
    "name", ["abs_", "neg_", "exp_", "relu_", "sigmoid_", "tanh_", "zero_", "sqrt_", "reciprocal_", "floor_", "sign_"]
)
def test_in_place_of_one(name: str) -> None:
    agree(lambda x: getattr(x, name)(), X)
    agree(lambda x: getattr(x[1:, 1::2], name)(), X)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.masked_fill_(x > 0, 7.0),
        lambda x: x.index_fill_(1, torch.tensor([1, 3], device=x.device), -1.0),
        lambda x: x.scatter_(1, torch.zeros(4, 2, dtype=torch.int64, device=x.device), 5.0),
        lambda x: x.index_add_(0, torch.tensor([1, 1, 3], device=x.device), x[:3].clone()),
        lambda x: x.clamp_(-1, 1),
        lambda x: x.addcmul_(x, x, value=0.5),
        lambda x: x.fill_(3),
        lambda x: x.tril_(),
        lambda x: x.__setitem__((slice(None), 2), 4.0),
        lambda x: x.__setitem__(x > 1, 0.0),
        lambda x: x.__setitem__((torch.tensor([0, 2], device=x.device), slice(1, 3)), x[:2, :2].clone()),
        lambda x: x.fill_diagonal_(2.0),
        lambda x: x.transpose_(0, 1).mul_(2),
        lambda x: x.squeeze_().unsqueeze_(0).add_(1),
    ],
)
def test_in_place_through_indices_and_views(f: Callable[[torch.Tensor], Any]) -> None:
    agree(lambda x: (f(x), x)[1], X)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.unfold(1, 2, 2),
        lambda x: x.diagonal(),
        lambda x: x.as_strided((3, 2), (2, 5), 1),
        lambda x: x.view(2, 2, 6).movedim(0, 2),
        lambda x: x.expand(3, 4, 6)[1],
        lambda x: x.chunk(3, 1)[2],
        lambda x: x.view(torch.int32),
        lambda x: x.flatten().unflatten(0, (3, 8)),
        lambda x: x.narrow(1, 2, 3).select(0, 1),
        lambda x: x.T.unsqueeze(1).swapaxes(0, 2),
    ],
)
def test_views_share_memory(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        part = view(x)
        part.add_(1)
        return part.clone(), x

    agree(f, X)


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("add", ([Y, Y],)), ("mul", (2.0,)), ("sqrt", ()), ("addcdiv", ([X, X], [Y + 1, Y + 1], 0.1)),
        ("lerp", ([X, X], 0.3)), ("maximum", ([X, X],)), ("neg", ()), ("sign", ()), ("pow", (2.0,)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("in_place", [False, True])
def test_foreach(name: str, rest: tuple[Any, ...], in_place: bool) -> None:
    def f(*unused: Any) -> Any:
        device = unused[0].device
        move = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), rest)
        tensors = [unused[0].clone(), unused[0] * 2]
        result = getattr(torch, f"_foreach_{name}{'_' if in_place else ''}")(tensors, *move)
        return tensors if in_place else result

    agree(f, Y)
