"""The pass over linear layers: what is replaced, in how many launches it runs, and that values stay right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vkinductor
from vkinductor.codegen import heuristics, passes
from vkinductor.device.quantized import linear_reference, quantized_linear


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """As models write it."""
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


class Block(nn.Module):
    """The linear layers of a decoder's layer; attention is a sum of what there is."""

    def __init__(self, k: int = 64, kv: int = 16, inner: int = 96, bias: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.rand(k) + 0.5), nn.Parameter(torch.rand(k) + 0.5)
        self.q, self.k, self.v = nn.Linear(k, k, bias), nn.Linear(k, kv, bias), nn.Linear(k, kv, bias)
        self.o, self.gate, self.up = nn.Linear(k, k, False), nn.Linear(k, inner, False), nn.Linear(k, inner, False)
        self.down = nn.Linear(inner, k, False)

    def forward(self, x: Tensor) -> Tensor:
        h = rms_norm(x, self.first)
        q, k, v = self.q(h), self.k(h), self.v(h)
        x = x + self.o(torch.sin(q) + (k * v).sum(-1, keepdim=True))
        h = rms_norm(x, self.second)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


@pytest.fixture(autouse=True)
def as_on_a_gpu() -> Iterator[None]:
    with heuristics.override(fused_linears=True):
        yield


def replaced(matches: list[passes.Match]) -> list[str]:
    return [match.pattern for match in matches if not match.missed]


TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}


def hold(model: Callable[..., Any], *inputs: Tensor, **options: Any) -> tuple[Any, int]:
    """Compiled values are float64's; returns the compiled function and the launches of a call."""
    dtype = inputs[0].dtype
    exact = model.double() if isinstance(model, nn.Module) else model
    with torch.no_grad():
        want = exact(*(x.double() for x in inputs))
        if isinstance(model, nn.Module):
            model = model.to(dtype).to("vulkan")
        call = torch.compile(model, backend="vulkan", fullgraph=True, **options)
        given = [x.to("vulkan") for x in inputs]
        got = call(*given)
        scale = max(1.0, want.abs().max().item())
        torch.testing.assert_close(got.cpu().double() / scale, want / scale, rtol=0, atol=TOLERANCE[dtype])
        vkinductor.reset_stats()
        call(*given)
        return call, vkinductor.stats()["dispatches"]


@pytest.mark.parametrize(("dtype", "rows"), [(torch.float16, 1), (torch.bfloat16, 3), (torch.float32, 8)], ids=str)
def test_a_layer(matches, dtype, rows):
    # Norm + q, k, v; the sum; o + residual; norm + gate, up + silu; down + residual.
    _, launches = hold(Block(), torch.randn(rows, 1, 64, dtype=dtype))
    assert replaced(matches) == ["RMSNorm + 3 linear", "RMSNorm + 2 linear + silu gate"]
    assert launches <= 6


def test_biases(matches):
    _, launches = hold(Block(bias=True), torch.randn(2, 1, 64))
    assert replaced(matches)[0] == "RMSNorm + 3 linear"
    assert launches <= 6


def test_rows_that_vary_or_are_many_stay(matches):
    hold(Block(), torch.randn(1, 9, 64))
    assert not replaced(matches)
    assert "9 rows" in matches[0].missed
    hold(Block(), torch.randn(1, 5, 64), dynamic=True)
    assert not replaced(matches)
    assert "varies" in matches[-1].missed


class Gated(nn.Module):
    """A norm and one weight whose halves are a gate and what it is for."""

    def __init__(self, act: Callable[[Tensor], Tensor], swapped: bool) -> None:
        super().__init__()
        self.norm, self.both = nn.LayerNorm(48), nn.Linear(48, 2 * 33)
        self.act, self.swapped = act, swapped

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.both(self.norm(x)).chunk(2, -1)
        return self.act(second) * first if self.swapped else self.act(first) * second


ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


@pytest.mark.parametrize(("name", "swapped"), [(n, n == "gelu") for n in ACTIVATIONS], ids=str)
def test_halves_of_one_weight(matches, name, swapped):
    _, launches = hold(Gated(ACTIVATIONS[name], swapped), torch.randn(1, 3, 48))
    assert replaced(matches) == [f"LayerNorm + linear + {name} gate"]
    assert launches == 1


def test_one_more_than_the_gain(matches):
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain, self.head = nn.Parameter(torch.randn(40) * 0.1), nn.Linear(40, 11, False)

        def forward(self, x: Tensor) -> Tensor:
            wide = x.float()
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
            return self.head((wide * (1.0 + self.gain.float())).type_as(x))

    _, launches = hold(Head(), torch.randn(2, 40, dtype=torch.float16))
    assert replaced(matches) == ["RMSNorm + linear"]
    assert launches == 1


def test_torch_rms_norm(matches):
    def f(x: Tensor, gain: Tensor, w: Tensor) -> Tensor:
        return F.linear(F.rms_norm(x, (32,), gain, 1e-5), w)

    hold(f, torch.randn(1, 32), torch.rand(32), torch.randn(6, 32))
    assert replaced(matches) == ["RMSNorm + linear"]


def test_normalized_rows_that_are_used_elsewhere(matches):
    def f(x: Tensor, gain: Tensor, a: Tensor, b: Tensor) -> Tensor:
        h = rms_norm(x, gain)
        return torch.cat([F.linear(h, a), F.linear(h, b), h], -1)

    hold(f, torch.randn(2, 32), torch.rand(32), torch.randn(6, 32), torch.randn(5, 32))
    assert replaced(matches) == ["2 linear"]
    assert any("uses the normalized rows as well" in match.missed for match in matches)


def test_results_that_are_used_elsewhere_are_no_gate(matches):
    def f(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        first = F.linear(x, a)
        return torch.cat([F.silu(first) * F.linear(x, b), first], -1)

    hold(f, torch.randn(2, 32), torch.randn(6, 32), torch.randn(6, 32))
    assert replaced(matches) == ["2 linear"]


def test_another_activation_is_no_gate(matches):
    def f(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return F.softplus(F.linear(x, a)) * F.linear(x, b)

    hold(f, torch.randn(2, 32), torch.randn(6, 32), torch.randn(6, 32))
    assert replaced(matches) == ["2 linear"]


def test_one_layer_alone_and_other_layouts_stay(matches):
    def f(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return F.linear(x, a) + (x * 2) @ b

    hold(f, torch.randn(2, 32), torch.randn(6, 32), torch.randn(32, 6))
    assert not matches


def test_one_weight_for_both(matches):
    def f(x: Tensor, w: Tensor) -> Tensor:
        return F.silu(F.linear(x, w)) * F.linear(x * 1.0, w.clone()) + F.linear(x, w).sum(-1, keepdim=True)

    hold(f, torch.randn(1, 32), torch.randn(6, 32))


def test_training_keeps_what_is_saved(matches):
    model, x = Block(), torch.randn(2, 1, 64)
    want = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    ours = Block().to("vulkan")
    ours.load_state_dict(model.state_dict())
    result = torch.compile(ours, backend="vulkan", fullgraph=True)(x.to("vulkan"))
    got = torch.autograd.grad(result.square().sum(), list(ours.parameters()))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-3)


def test_explain_names_what_matched_and_what_did_not():
    model = Block().half().to("vulkan").eval().requires_grad_(False)
    text = str(vkinductor.explain(model, torch.randn(1, 1, 64, dtype=torch.float16, device="vulkan")))
    assert "RMSNorm + 3 linear" in text
    text = str(vkinductor.explain(model, torch.randn(1, 9, 64, dtype=torch.float16, device="vulkan")))
    assert "9 rows" in text


def test_processors_keep_kernels_of_single_weights(matches):
    with heuristics.override(fused_linears=None):
        hold(Block(), torch.randn(1, 1, 64))
    assert not replaced(matches)
    assert "processor" in matches[0].missed


def test_blocks(matches):
    gguf = pytest.importorskip("gguf")
    numbers = {"Q4_0": 2, "Q8_0": 8}

    def packed(n: int, name: str) -> Tensor:
        values = (torch.randn(n, 64) / 8).numpy()
        return torch.from_numpy(gguf.quants.quantize(values, gguf.GGMLQuantizationType(numbers[name])))

    formats = {"q": "Q4_0", "k": "Q8_0", "gate": "Q4_0", "up": "Q4_0", "down": "Q8_0"}
    weights = {name: packed(64, kind) for name, kind in formats.items()}
    gain, x = torch.rand(64) + 0.5, torch.randn(1, 3, 64)

    def layer(x: Tensor, gain: Tensor, linear: Callable[[Tensor, str], Tensor]) -> Tensor:
        h = rms_norm(x, gain)
        x = x + linear(h, "q") * linear(h, "k")
        h = rms_norm(x, gain)
        return x + linear(F.silu(linear(h, "gate")) * linear(h, "up"), "down")

    def ours(x: Tensor, gain: Tensor, weights: dict[str, Tensor]) -> Tensor:
        return layer(x, gain, lambda h, name: quantized_linear(h, weights[name], numbers[formats[name]]))

    want = layer(x, gain, lambda h, name: linear_reference(h, weights[name], numbers[formats[name]]))
    given = [x.to("vulkan"), gain.to("vulkan"), {k: v.to("vulkan") for k, v in weights.items()}]
    call = torch.compile(ours, backend="vulkan", fullgraph=True)
    torch.testing.assert_close(call(*given).cpu(), want, rtol=1e-4, atol=1e-4)
    assert replaced(matches) == ["RMSNorm + 2 linear", "RMSNorm + 2 linear + silu gate"]
    vkinductor.reset_stats()
    call(*given)
    # Those two, q * k + x, and down with what is added to it.
    assert vkinductor.stats()["dispatches"] == 4
