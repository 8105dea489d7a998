"""options={"check_bounds": True}: an index out of range is an error that names kernel, buffer and index."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vkinductor import IndexOutOfBoundsError, VulkanError

OPTIONS = {"check_bounds": True}


def compiled(f: Any, **options: Any) -> Any:
    return torch.compile(f, backend="vulkan", fullgraph=True, options=OPTIONS, **options)


def lookup(table: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding(i, table) * 2  # the line


def put(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x.index_put((i,), torch.ones_like(i, dtype=x.dtype)[:, None], accumulate=True) + 1


def gather(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x.gather(0, i[:, None].expand(-1, x.shape[1])).sum(1)


def scatter(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x.scatter(0, i[:, None], 1.0)


def index(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x.relu()[i]


FUNCTIONS = [lookup, put, gather, scatter, index]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_out_of_range(f: Any, dynamic: bool) -> None:
    x, good = torch.randn(10, 3), torch.tensor([3, 0, 9, 4])
    call = compiled(f, dynamic=dynamic)
    for _ in range(3):  # the second and third would be recorded
        torch.testing.assert_close(call(x, good), f(x, good))
    for wrong in (10, 25, 1 << 40, (1 << 32) + 1):
        with pytest.raises(IndexOutOfBoundsError, match=r"kernel vk_\w+: index \d+ of \w+ is not in 0\.\.9"):
            call(x, torch.tensor([3, wrong, 9, 4]))
    torch.testing.assert_close(call(x, good), f(x, good))  # the next call is not affected


def test_the_message_has_index_and_line() -> None:
    with pytest.raises(IndexOutOfBoundsError, match="index 12 of") as caught:
        compiled(lookup)(torch.randn(10, 3), torch.tensor([12]))
    assert "# the line" in str(caught.value)
    assert isinstance(caught.value, IndexError)
    assert isinstance(caught.value, VulkanError)
    with pytest.raises(IndexOutOfBoundsError, match="index -1"):  # or -11: torch 2.11 adds the size first
        compiled(lookup)(torch.randn(10, 3), torch.tensor([-11]))


def test_negative_indices_count_from_the_end() -> None:
    x = torch.randn(10, 3)
    call = compiled(index)
    torch.testing.assert_close(call(x, torch.tensor([-1, -10])), index(x, torch.tensor([-1, -10])))
    with pytest.raises(IndexOutOfBoundsError):
        call(x, torch.tensor([-1, -11]))


def test_on_the_device_and_in_the_backward() -> None:
    table = torch.randn(10, 3, device="vulkan", requires_grad=True)
    i = torch.tensor([1, 2], device="vulkan")
    call = compiled(lookup)
    call(table, i).sum().backward()
    assert table.grad is not None
    assert table.grad.cpu().sum(1).tolist() == [0.0, 6.0, 6.0] + [0.0] * 7
    with pytest.raises(IndexOutOfBoundsError):
        call(table, i + 20)


def test_two_kernels_and_a_reduction() -> None:
    def f(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        rows = x[i] @ x.T  # first
        return rows[:, j].sum(1)  # second

    x, good, bad = torch.randn(6, 6), torch.tensor([1, 2]), torch.tensor([1, 6])
    call = compiled(f)
    torch.testing.assert_close(call(x, good, good), f(x, good, good))
    with pytest.raises(IndexOutOfBoundsError, match="index 6") as first:
        call(x, bad, good)
    with pytest.raises(IndexOutOfBoundsError, match="index 6") as second:
        call(x, good, bad)
    assert "# first" in str(first.value)
    assert "# second" in str(second.value)


def test_nothing_changes_without_the_option() -> None:
    x = torch.randn(10, 3)
    result = torch.compile(lookup, backend="vulkan")(x, torch.tensor([12]))
    assert torch.equal(result, x[9:] * 2)  # clamped
