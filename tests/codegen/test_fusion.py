"""How many kernels a graph becomes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled, copies, dispatches, on_device, same


def ten_operators(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((((x + 1).sin() * y).exp() - x).abs().sqrt() / (y * y + 1)).tanh()


def linear_silu(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return F.silu(F.linear(x, w)) * 2 + r


def linear_bias_gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b))


def matrix_vector(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w).relu() + r


def many_outputs(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x + y, x - y, (x * y).bool(), (x > y).to(torch.int8)


def softmax_scaled_masked(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    return (x * 0.125).masked_fill(m > 0, -torch.inf).softmax(-1) * 2


def cat_and_slice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, y * 2], -1)[:, 3:] + 1


def rotary(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    half = torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1)
    return x * t.cos() + half * t.sin()


def embedding_norm(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.embedding(index, table), table.shape[-1:])


def randn(*size: int) -> torch.Tensor:
    return torch.randn(*size)


CASES: list[tuple[Callable[..., object], Callable[[], list[torch.Tensor]]]] = [
    (ten_operators, lambda: [randn(33, 17), randn(33, 17)]),
    (ten_operators, lambda: [randn(33, 17), randn(17)]),
    (linear_silu, lambda: [randn(33, 65), randn(17, 65), randn(33, 17)]),
    (linear_silu, lambda: [randn(2, 9, 65), randn(17, 65), randn(2, 9, 17)]),
    (linear_bias_gelu, lambda: [randn(33, 65), randn(17, 65), randn(17)]),
    (matrix_vector, lambda: [randn(1, 65), randn(17, 65), randn(1, 17)]),
    (many_outputs, lambda: [randn(33, 17), randn(33, 17)]),
    (softmax_scaled_masked, lambda: [randn(33, 170), randn(33, 170)]),
    (cat_and_slice, lambda: [randn(5, 7), randn(5, 9)]),
    (rotary, lambda: [randn(2, 3, 5, 8), randn(5, 8)]),
    (embedding_norm, lambda: [randn(50, 48), torch.randint(0, 50, (2, 7))]),
]


@pytest.mark.parametrize(("f", "make"), CASES, ids=lambda v: getattr(v, "__name__", "").replace("<lambda>", ""))
def test_one_kernel(f: Callable[..., object], make: Callable[[], list[torch.Tensor]]) -> None:
    args = make()
    g = compiled(f)
    moved = on_device(args)
    same(g(*moved), f(*copies(args)))
    assert dispatches(g, *moved) == 1


def test_a_product_used_twice_is_computed_once() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x @ w
        return y.relu(), y + 1

    args = on_device([randn(9, 16), randn(16, 12)])
    g = compiled(f)
    same(g(*args), f(*[a.cpu() for a in args]))
    assert dispatches(g, *args) == 1


def test_a_reduction_of_a_product_takes_two() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu().softmax(-1)

    args = on_device([randn(9, 16), randn(16, 12)])
    g = compiled(f)
    same(g(*args), f(*[a.cpu() for a in args]))
    assert dispatches(g, *args) == 2


def test_loops_are_tried_anew_only_for_a_shared_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of a pointwise node and a reduction grow with the square of a model's layers."""
    from torch._inductor.scheduler import SchedulerNode

    if not hasattr(SchedulerNode, "apply_loop_reindexing"):
        pytest.skip("this torch does not reindex loops")
    tried = []
    original = SchedulerNode.apply_loop_reindexing
    monkeypatch.setattr(
        SchedulerNode, "apply_loop_reindexing", lambda node, *args: (tried.append(node), original(node, *args))[1]
    )

    def attention(x: torch.Tensor, w: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = F.linear(F.rms_norm(x, x.shape[-1:]), w).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        return x + F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)

    def model(x: torch.Tensor, ws: list[torch.Tensor], length: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        mask = (places[None] <= (places + length)[:, None])[None, None]
        for w in ws:
            x = attention(x, w, mask)
        return x

    counts = []
    for layers in (1, 2):
        tried.clear()
        args = [
            torch.randn(1, 9, 16),
            [torch.randn(48, 16) / 4 for _ in range(layers)],
            torch.zeros((), dtype=torch.int64),
        ]
        x, ws, length = args
        got = compiled(model, dynamic=True)(*on_device([x]), on_device(ws), *on_device([length]))
        same(got, model(x, ws, length), rtol=1e-4, atol=1e-4)
        counts.append(len(tried))
    assert counts[1] <= 2 * counts[0], counts
