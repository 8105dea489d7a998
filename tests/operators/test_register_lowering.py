"""Operators in PyTorch: taken apart and fused in graphs, compiled in eager calls, cached by what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import vkinductor
from vkinductor import OperatorError
from vkinductor.operators.fingerprint import fingerprint

Name = Callable[[], str]


def declared(name: str) -> Any:
    library = torch.library.Library(name.partition("::")[0], "FRAGMENT")
    library.define(f"{name.partition('::')[2]}(Tensor x, int n=1) -> Tensor")
    torch.library.register_fake(name, lambda x, n=1: torch.empty_like(x), lib=library)
    KEPT.append(library)
    return getattr(torch.ops.vkinductor_operators, name.partition("::")[2])


KEPT: list[Any] = []


@pytest.mark.parametrize("by", ["overload", "packet", "name"])
def test_eager_and_compiled(name: Name, by: str) -> None:
    called = name()
    op = declared(called)
    target = {"overload": op.default, "packet": op, "name": called}[by]
    assert vkinductor.register_lowering(target, lambda x, n=1: x * 2 + n) is op.default
    x = torch.randn(3, 4)
    with vkinductor.set_fallback("error"):
        assert torch.equal(op(x.to("vulkan"), 3).cpu(), x * 2 + 3)
        vkinductor.reset_stats()
        f = torch.compile(lambda x: op(x.abs(), 3) * 5, backend="vulkan", options={"fallback": "error"})
        torch.testing.assert_close(f(x), (x.abs() * 2 + 3) * 5)
    assert vkinductor.stats()["dispatches"] == 1


def test_a_custom_op_with_a_body_of_its_own(name: Name) -> None:
    @torch.library.custom_op(name(), mutates_args=())
    def twice(x: torch.Tensor, n: int) -> torch.Tensor:
        return (x.cpu() * 2 + n).to(x.device)

    @twice.register_fake
    def _(x: torch.Tensor, n: int) -> torch.Tensor:
        return torch.empty_like(x)

    @twice.register_autograd
    def _(context: Any, gradient: torch.Tensor) -> Any:
        return gradient * 2, None

    vkinductor.register_lowering(twice, lambda x, n: x * 2 + n)
    x = torch.randn(4)
    device = x.to("vulkan")
    vkinductor.reset_stats()
    assert torch.equal(twice(device, 3).cpu(), x * 2 + 3)
    assert vkinductor.stats()["d2h_bytes"] == 4 * 4  # the result that was looked at
    leaf = x.clone().requires_grad_()
    torch.compile(lambda x: twice(x, 1).sum(), backend="vulkan")(leaf).backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2.0] * 4


def test_registering_again(name: Name) -> None:
    op = declared(name())
    x = torch.ones(3)

    def run() -> list[float]:
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: op(x), backend="vulkan")(x).tolist()
        assert op(x.to("vulkan")).cpu().tolist() == compiled
        return compiled

    for _ in range(2):
        vkinductor.register_lowering(op, lambda x, n=1: x + n)
        assert run() == [2.0] * 3
    with pytest.raises(OperatorError, match="registered already"):
        vkinductor.register_lowering(op, lambda x, n=1: x - n)
    vkinductor.register_lowering(op, lambda x, n=1: x - n, replace=True)
    assert run() == [0.0] * 3
    with pytest.raises(OperatorError, match="registered already"):
        vkinductor.register_lowering(op, lambda x, n=1: x - n, version="2")


def test_what_cannot_be_registered(name: Name) -> None:
    op = declared(name())
    with pytest.raises(OperatorError, match="a function"):
        vkinductor.register_lowering(op, 3)
    with pytest.raises(OperatorError, match="does not take the arguments"):
        vkinductor.register_lowering(op, lambda: 1)
    with pytest.raises(OperatorError, match="takes this operator apart"):
        vkinductor.register_lowering("aten::matmul", lambda x, y: x)
    with pytest.raises(OperatorError, match="overloads"):
        vkinductor.register_lowering(torch.ops.aten.eq, lambda x, y: x)
    with pytest.raises(OperatorError, match="is no operator"):
        vkinductor.register_lowering(object(), lambda x: x)


SCALE = 2.0


def helper(x: Any) -> Any:
    return x + 1


def test_fingerprints_see_what_a_function_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(n: int) -> Any:
        return lambda x: helper(x) * n * SCALE

    assert fingerprint(make(1)) == fingerprint(make(1))
    assert fingerprint(make(1)) != fingerprint(make(2))
    assert fingerprint(make(1)) != fingerprint(lambda x: x)
    before = fingerprint(make(1))
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert fingerprint(make(1)) != before
    before = fingerprint(make(1))
    monkeypatch.setitem(globals(), "helper", lambda x: x + 2)
    assert fingerprint(make(1)) != before
