"""options={"check": ...}: each kernel against the CPU in float64, where it arises."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import vkinductor
from vkinductor import CheckError
from vkinductor.codegen.checks import VulkanCheckWarning
from vkinductor.codegen.ops import GlslOverrides


@pytest.fixture(autouse=True)
def no_report() -> Iterator[None]:
    vkinductor.check_report(clear=True)
    yield
    vkinductor.check_report(clear=True)


def compiled(f: Any, check: Any = "error", **options: Any) -> Any:
    return torch.compile(f, backend="vulkan", options={"check": check}, **options)


def report() -> list[Any]:
    found = vkinductor.check_report()
    assert all(entry.ok for entry in found), "\n".join(map(str, found))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_network_and_its_backward(dtype: torch.dtype) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 8), torch.nn.Softmax(-1)
    ).to(dtype)
    compiled(model)(torch.randn(8, 16, dtype=dtype)).pow(2).sum().backward()
    found = report()
    assert len(found) > 8
    assert not any(entry.skipped for entry in found)
    assert any("aten.addmm.default" in entry.operators for entry in found)
    assert any("backward" in entry.kernel for entry in found)


@pytest.mark.parametrize("dynamic", [False, True])
def test_everything_else(dynamic: bool) -> None:
    def f(x: torch.Tensor, i: torch.Tensor, n: int) -> Any:
        added = x.index_put((i,), torch.ones(2, x.shape[1]), accumulate=True)
        joined = torch.cat([x[:, :2], x[:, ::2]], 1).half() * 2 + n
        x.mul_(2)
        return added, joined, (x > 0).sum(), x.argmax(1), x.gather(0, i[:, None]), joined.float().var(1), x.t() @ x

    call = compiled(f, dynamic=dynamic)
    for rows in (6, 4):
        call(torch.randn(rows, 8), torch.tensor([1, 1]), 3)
    found = report()
    assert sum(not entry.skipped for entry in found) >= 7
    assert {entry.dtype for entry in found} >= {"float32", "float16", "int64"}


def test_operators_outside_of_the_kernels() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        u, s, v = torch.linalg.svd(x + 1)
        return (u * s) @ v

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(f)(torch.randn(5, 5))
    assert len(report()) >= 2


def test_random_numbers_are_not_compared() -> None:
    compiled(lambda x: torch.rand_like(x) + x)(torch.ones(4))
    (entry,) = report()
    assert "random" in entry.skipped
    assert "not compared" in str(entry)


def wrong(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x).sum(1)  # right
    return torch.sin(y) * 2  # off


@pytest.fixture
def wrong_sine(monkeypatch: pytest.MonkeyPatch) -> None:
    right = GlslOverrides.sin
    monkeypatch.setattr(GlslOverrides, "sin", staticmethod(lambda x: f"({right(x)} + float({x} > 2.0))"))


@pytest.mark.usefixtures("wrong_sine")
def test_an_error_names_kernel_operators_and_position() -> None:
    x = torch.zeros(4, 4)
    x[2] = 1.0
    with pytest.raises(CheckError, match="WRONG") as caught:
        compiled(wrong)(x)
    text = str(caught.value)
    assert "aten.sin.default" in text
    assert "at [2]" in text
    assert "# off" in text or "# right" in text  # one kernel computes both lines
    (entry,) = [e for e in vkinductor.check_report() if not e.ok]
    assert entry.absolute == pytest.approx(2.0, abs=1e-5)
    assert entry.position == (2,)
    assert entry.got == pytest.approx(entry.want + 2, abs=1e-5)


@pytest.mark.usefixtures("wrong_sine")
def test_a_warning_goes_on() -> None:
    with pytest.warns(VulkanCheckWarning, match="WRONG"):
        result = compiled(wrong, True)(torch.ones(2, 4))
    assert result.shape == (2,)


@pytest.mark.usefixtures("wrong_sine")
def test_errors_do_not_add_up() -> None:
    """A kernel that is right on wrong inputs is right."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((torch.sin(x) @ w).exp() @ w).exp() @ w  # a kernel each: products compute what they multiply

    with pytest.warns(VulkanCheckWarning):
        compiled(f, True)(torch.full((3, 3), 3.0), torch.eye(3))
    found = vkinductor.check_report()
    assert [entry.ok for entry in found].count(False) == 1
    assert len(found) >= 3


def test_worst_first_and_cleared() -> None:
    call = compiled(lambda x: (x.exp(), x.sum()))
    for _ in range(3):
        call(torch.randn(100))
    found = vkinductor.check_report(clear=True)
    assert [entry.ulp for entry in found] == sorted((entry.ulp for entry in found), reverse=True)
    assert {entry.calls for entry in found} == {3}
    assert vkinductor.check_report() == []


def test_wrong_values() -> None:
    with pytest.raises(ValueError, match="True, 'warn', 'error'"):
        compiled(wrong, "always")(torch.ones(2, 2))
