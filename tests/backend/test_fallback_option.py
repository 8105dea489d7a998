"""options={"fallback": ...} and set_fallback: what happens when an operator would run on the CPU."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import vkinductor
from vkinductor import FallbackError
from vkinductor.device.fallback import VulkanFallbackWarning
from vkinductor.device.registry import registry

LIBRARY = torch.library.Library("vkinductor_fallback_test", "FRAGMENT")
LIBRARY.define("negated(Tensor x) -> Tensor")
LIBRARY.impl("negated", lambda x: -x, "CPU")
LIBRARY.define("python(Tensor x) -> Tensor")
LIBRARY.impl("python", lambda x: x * 3, "PrivateUse1")
LIBRARY.define("indirect(Tensor x) -> Tensor")
LIBRARY.impl("indirect", lambda x: torch.ops.vkinductor_fallback_test.negated(x), "PrivateUse1")
for _name in ("negated", "python", "indirect"):
    torch.library.register_fake(f"vkinductor_fallback_test::{_name}", torch.empty_like, lib=LIBRARY)

ops: Any = torch.ops.vkinductor_fallback_test


@pytest.fixture(autouse=True)
def told_anew() -> None:
    registry.warned.clear()


def on_cpu(x: torch.Tensor) -> torch.Tensor:
    return ops.negated(x * 2) + 1  # the line


def compiled(f: Any, policy: str | None, **options: Any) -> Any:
    given = options if policy is None else {"fallback": policy, **options}
    return torch.compile(f, backend="vulkan", options=given)


def warnings_of(call: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught if issubclass(w.category, VulkanFallbackWarning)]


@pytest.mark.parametrize("device", ["cpu", "vulkan"])
def test_an_error_names_operator_reason_and_line(device: str) -> None:
    vkinductor.reset_stats()
    with pytest.raises(FallbackError, match="negated") as caught:
        compiled(on_cpu, "error")(torch.ones(3, device=device))
    assert caught.value.operator == "vkinductor_fallback_test.negated.default"
    assert "no kernel" in caught.value.reason
    assert "test_fallback_option.py" in caught.value.where
    assert "# the line" in caught.value.where
    assert not vkinductor.stats()["fallbacks"]


def test_warn_and_allow() -> None:
    x = torch.ones(3)
    assert len(warnings_of(lambda: compiled(on_cpu, "warn")(x))) == 1
    registry.warned.clear()
    torch._dynamo.reset()
    assert warnings_of(lambda: compiled(on_cpu, "allow")(x)) == []
    assert compiled(on_cpu, "allow")(x).tolist() == [-1.0] * 3


def test_what_the_device_runs_in_python_is_no_fallback() -> None:
    assert compiled(lambda x: ops.python(x) + 1, "error")(torch.ones(2)).tolist() == [4.0, 4.0]


def test_a_fallback_inside_a_kernel_is_found_when_it_runs() -> None:
    f = compiled(lambda x: ops.indirect(x) + 1, "error")
    with pytest.raises(FallbackError, match="negated") as caught:
        f(torch.ones(2))
    assert "test_fallback_option.py" in caught.value.where
    # The graph's policy ends with its call.
    assert ops.negated(torch.ones(2, device="vulkan")).cpu().tolist() == [-1.0, -1.0]


def test_a_dtype_without_kernels_is_the_reason() -> None:
    x = torch.ones(2, dtype=torch.complex64, device="vulkan")
    with vkinductor.set_fallback("error"), pytest.raises(FallbackError, match=r"no kernels for torch\.complex64"):
        torch.abs(x)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return ops.negated(gradient) * -2


@pytest.mark.parametrize("device", ["cpu", "vulkan"])
def test_in_the_backward(device: str) -> None:
    x = torch.ones(3, device=device).requires_grad_()
    y = compiled(lambda x: Doubled.apply(x).sin(), "error")(x)
    with pytest.raises(FallbackError, match="negated"):
        y.sum().backward()


def test_a_cached_graph_keeps_its_own_policy() -> None:
    x = torch.ones(5)
    for _ in range(2):
        assert compiled(on_cpu, "warn")(x).tolist() == [-1.0] * 5
        torch._dynamo.reset()
        with pytest.raises(FallbackError):
            compiled(on_cpu, "error")(x)
        torch._dynamo.reset()
        f = compiled(lambda x: ops.indirect(x) * 5, "error")
        with pytest.raises(FallbackError):
            f(x)
        torch._dynamo.reset()


def test_the_setter_and_the_context() -> None:
    x = torch.ones(2, device="vulkan")
    with vkinductor.set_fallback("error"):
        with pytest.raises(FallbackError, match="Inductor neither lowers nor decomposes"):
            ops.negated(x)
        with vkinductor.set_fallback("allow"):
            assert warnings_of(lambda: ops.negated(x)) == []
        with pytest.raises(FallbackError):
            ops.negated(x)
        # A graph without a policy of its own follows the process's, when it runs.
        with pytest.raises(FallbackError):
            compiled(on_cpu, None)(x)
    torch._dynamo.reset()
    vkinductor.set_fallback("error")
    try:
        with pytest.raises(FallbackError):
            ops.negated(x)
        assert compiled(on_cpu, "allow")(x).cpu().tolist() == [-1.0, -1.0]
    finally:
        vkinductor.set_fallback("warn")
    assert len(warnings_of(lambda: ops.negated(x))) == 1


def test_wrong_policies() -> None:
    with pytest.raises(ValueError, match="'error', 'warn', 'allow'"):
        compiled(on_cpu, "never")(torch.ones(2))
    with pytest.raises(ValueError, match="error, warn, allow"):
        vkinductor.set_fallback("never")
    with pytest.raises(ValueError, match="unknown option"):
        torch.compile(on_cpu, backend="vulkan", options={"vulkan.fallback": "warn"})(torch.ones(2))
