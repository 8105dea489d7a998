"""Functions of CPU tensors: results, strides, kinds of arguments and constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Agree = Callable[..., Any]


def test_pointwise_and_reduction(agree: Agree, counted: Agree) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (x * 2 + y).relu().sum(-1), x - y

    compiled, args = agree(f, lambda: (torch.randn(4, 8), torch.randn(8)))
    _, stats = counted(compiled, *args)
    assert stats["fallbacks"] == {}
    assert stats["h2d_bytes"] == 0


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_dynamic(agree: Agree, dynamic: bool | None) -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        return x.softmax(-1) * n + x.shape[0]

    compiled, _ = agree(f, lambda: (torch.randn(3, 5), 2), dynamic=dynamic)
    for rows, n in ((4, 3), (7, 11), (1, 1), (0, 2)):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(compiled(x, n), f(x, n))


INPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: torch.randn(3, 4).t(),
    "expanded": lambda: torch.randn(3, 1).expand(3, 4),
    "zero stride": lambda: torch.randn(1).expand(4),
    "offset": lambda: torch.randn(40)[7:27].view(4, 5),
    "small part of much": lambda: torch.randn(100, 10)[50:52, ::2],
    "expanded part of much": lambda: torch.randn(100, 10)[50:51].expand(3, 10),
    "overlapping": lambda: torch.randn(10).as_strided((4, 3), (2, 1)),
    "empty": lambda: torch.randn(0, 3),
    "scalar": lambda: torch.tensor(1.5),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "int32": lambda: torch.arange(6, dtype=torch.int32),
    "int64": lambda: torch.arange(6) << 33,
    "uint8": lambda: torch.arange(6, dtype=torch.uint8) * 50,
    "bool": lambda: torch.tensor([True, False]),
    "bfloat16": lambda: torch.randn(5).bfloat16(),
    "float16": lambda: torch.randn(5).half(),
    "float64": lambda: torch.randn(5).double(),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_kinds_of_input(agree: Agree, kind: str) -> None:
    agree(lambda x: x * 2, lambda: (INPUTS[kind](),))


def test_numbers_and_none(agree: Agree) -> None:
    def f(x: torch.Tensor, a: float, b: bool, c: Any, d: list[Any]) -> Any:
        y = x * a if b else x
        return {"y": y if c is None else y + c, "d": d[0] + 1, "none": None, "number": d[1], "shape": x.shape[0]}

    agree(f, lambda: (torch.randn(3), 0.5, True, None, [torch.ones(2), 7]))
    agree(f, lambda: (torch.randn(3), 0.25, False, 2, [torch.tensor(3), 2.5]))


def test_only_factories_and_constants(agree: Agree) -> None:
    table = torch.arange(4.0)

    def f() -> Any:
        made = torch.arange(3), torch.zeros(2, dtype=torch.float64), torch.full((2, 2), 1.5), torch.tensor([1, 2])
        return *made, table + 1

    agree(f, tuple)


def test_devices_inside(agree: Agree) -> None:
    def f(x: torch.Tensor) -> Any:
        mask = torch.ones(3, 3, device="cpu").tril()
        place = torch.arange(x.shape[0], device=x.device)
        start = torch.tensor(2.0)
        window = torch.hann_window(4)
        return (
            x.to("cpu") @ mask, x.cpu() + place, x * start, x.new_ones(2), torch.zeros_like(x), window,
            x.to(torch.device("cpu"), torch.float64), x.device,
        )  # fmt: skip

    agree(f, lambda: (torch.randn(3, 3),))


def test_cpu_of_a_cpu_tensor_is_the_tensor(agree: Agree) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.cpu().add_(1)
        return x * 2

    agree(f, lambda: (torch.randn(3),))


def test_result_that_the_user_wants_on_the_device() -> None:
    x = torch.randn(3)
    y, z = torch.compile(lambda x: ((x + 1).to("vulkan"), x + 2), backend="vulkan")(x)
    assert (y.device.type, z.device.type) == ("vulkan", "cpu")
    assert torch.equal(y.cpu(), x + 1)
    assert torch.equal(z, x + 2)


def test_graph_breaks(agree: Agree) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        z = y.t() + y.sum().item()
        return z if z.sum() > 0 else -z

    agree(f, lambda: (torch.randn(3, 4),), fullgraph=False)


def test_conjugate_input(agree: Agree) -> None:
    agree(lambda x: x + x, lambda: (torch.randn(3, dtype=torch.complex64).conj(),))


def test_autocast_around_and_inside() -> None:
    linear = torch.nn.Linear(4, 4)
    x = torch.randn(2, 4)

    def f(x: torch.Tensor) -> Any:
        y = linear(x)
        return y, y.softmax(-1)

    def g(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return f(x)

    expected = g(x)
    with torch.autocast("cpu", torch.bfloat16):
        around = torch.compile(f, backend="vulkan", fullgraph=True)(x)
    inside = torch.compile(g, backend="vulkan", fullgraph=True)(x)
    for actual in (around, inside):
        for a, e in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, e, atol=2e-2, rtol=2e-2)


def test_cond_moves_its_branches(agree: Agree) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + torch.ones(3), lambda x: x - torch.arange(3.0), (x,))

    compiled, _ = agree(f, lambda: (torch.ones(3),))
    torch.testing.assert_close(compiled(-torch.ones(3)), f(-torch.ones(3)))


def test_numpy_inside(agree: Agree) -> None:
    import numpy as np

    agree(lambda x: torch.from_numpy(np.tanh(x.numpy()) * 2), lambda: (torch.randn(3),))
