"""explain: graphs, kernels, bytes, flops, breaks and fallbacks; and no trace of it afterwards."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import vkinductor
from vkinductor.codegen import graph_cache
from vkinductor.device.registry import registry

LIBRARY = torch.library.Library("vkinductor_explain_test", "FRAGMENT")
LIBRARY.define("negated(Tensor x) -> Tensor")
LIBRARY.impl("negated", lambda x: -x, "CPU")
torch.library.register_fake("vkinductor_explain_test::negated", torch.empty_like, lib=LIBRARY)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.second = torch.nn.Linear(32, 4)
        self.norm = torch.nn.BatchNorm1d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(torch.relu(self.first(x))))


def test_a_product_with_its_epilogue() -> None:
    weight, x = torch.randn(32, 16), torch.randn(8, 32)
    found = vkinductor.explain(lambda x: torch.relu(x @ weight) * 2, x)
    assert len(found.graphs) == 1
    assert not found.breaks
    assert not found.fallbacks
    assert [phase.phase for phase in found.graphs[0].phases] == ["inference"]
    (kernel,) = found.kernels
    assert kernel.operators == ("aten.mm.default", "aten.relu.default", "aten.mul.Tensor")
    assert kernel.product_flops == 2 * 8 * 32 * 16
    assert kernel.elementwise_flops == 2 * 8 * 16
    assert kernel.nbytes_read == 4 * (8 * 32 + 32 * 16)
    assert kernel.nbytes_written == 4 * 8 * 16
    assert all("test_explain.py" in where for where in kernel.where)
    assert found.flops == kernel.product_flops + kernel.elementwise_flops
    assert found.nbytes == kernel.nbytes_read + kernel.nbytes_written
    assert found.glsl("mm").startswith("#version 460")
    with pytest.raises(KeyError, match="mm"):
        found.glsl("nothing")
    text = str(found)
    assert "1 graph, 0 graph breaks, 1 launch" in text
    assert "mm, relu, mul.Tensor" in text
    assert "8.4 kflop" in text


def test_training_has_a_backward() -> None:
    found = vkinductor.explain(Model(), torch.randn(8, 16))
    forward, backward = found.graphs[0].phases
    assert (forward.phase, backward.phase) == ("forward", "backward")
    assert forward.kernels
    assert backward.kernels
    products = sum(kernel.product_flops for kernel in backward.kernels)
    # For the first layer's weight, and for input and weight of the second.
    assert products == 2 * 8 * 16 * 32 + 2 * 2 * 8 * 32 * 4
    assert found.launches == len(forward.kernels) + len(backward.kernels)


@pytest.mark.parametrize("device", ["cpu", "vulkan"])
def test_breaks_and_fallbacks(device: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.ops.vkinductor_explain_test.negated(x + 1)  # falls back
        torch._dynamo.graph_break()  # breaks
        return torch.ops.vkinductor_explain_test.negated(y * 2)

    found = vkinductor.explain(f, torch.ones(3, device=device))
    assert len(found.graphs) == 2
    (end,) = found.breaks
    assert "# breaks" in end.where
    assert end.reason
    first, second = found.fallbacks
    assert first.operator == second.operator == "vkinductor_explain_test.negated.default"
    assert "no kernel" in first.reason
    assert "# falls back" in first.where
    assert found.ran_on_cpu == {"vkinductor_explain_test.negated.default": 2}
    for part in ("graph break: ", "# breaks", "# falls back", "on the CPU", "(2x)"):
        assert part in str(found)


def test_dynamic_sizes_count_as_likely() -> None:
    found = vkinductor.explain(lambda x: x.sin() + 1, torch.randn(6, 5), dynamic=True)
    (kernel,) = found.kernels
    assert kernel.elementwise_flops == 2 * 30
    assert kernel.nbytes_read == kernel.nbytes_written == 120


def test_nothing_is_left_behind() -> None:
    model, x = Model(), torch.randn(8, 16)
    fast = torch.compile(model, backend="vulkan")
    fast(x).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    state = {name: value.clone() for name, value in model.state_dict().items()}
    files = graph_cache.graph_files()
    counts = vkinductor.stats()
    dynamo = {name: dict(values) for name, values in torch._dynamo.utils.counters.items()}
    random, on_device = torch.get_rng_state(), torch.vulkan.get_rng_state()
    registry.warned.clear()

    def changes(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.ops.vkinductor_explain_test.negated(model(x)) + torch.rand_like(x[:, :4])

    y = x.clone()
    vkinductor.explain(model, x)
    vkinductor.explain(changes, y)
    assert torch.equal(x, y)
    assert graph_cache.graph_files() == files
    assert vkinductor.stats() == counts
    assert {name: dict(values) for name, values in torch._dynamo.utils.counters.items()} == dynamo
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(torch.vulkan.get_rng_state(), on_device)
    assert not registry.warned
    assert not registry.reports
    for name, p in model.named_parameters():
        assert p.grad is not None
        assert torch.equal(p.grad, gradients[name])
    for name in state:
        if "weight" in name or "bias" in name:
            assert torch.equal(model.state_dict()[name], state[name])
    # What was compiled before still is, and is not compiled again.
    with torch._dynamo.config.patch(error_on_recompile=True):
        fast(x)


def test_what_explain_compiled_is_not_used_later() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.cos() * 3

    vkinductor.explain(f, torch.ones(4))
    called: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        called.append([tuple(i.shape) for i in inputs])
        return module.forward

    # Sizes seen while explaining do not count as sizes that vary.
    torch.compile(f, backend=backend)(torch.ones(5))
    assert called == [[(5,)]]


def test_errors_leave_nothing_behind_either() -> None:
    with pytest.raises(ValueError, match="unknown option"):
        vkinductor.explain(lambda x: x, torch.ones(2), options={"no_such_option": 1})
    with pytest.raises(vkinductor.FallbackError):
        vkinductor.explain(
            lambda x: torch.ops.vkinductor_explain_test.negated(x), torch.ones(2), options={"fallback": "error"}
        )
    assert not registry.reports
    assert registry.fallback_policy == "warn"
    assert os.environ.get("TORCHINDUCTOR_FORCE_DISABLE_CACHES") is None
