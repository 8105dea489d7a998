"""Comparison with CPU eager, and a check that nothing fell back to the CPU on the way."""

from __future__ import annotations

import copy

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compare(counters):
    """A function that runs a model compiled on Vulkan and eagerly on the CPU and compares what they return.

    `compare(model, inputs, mode)`: `model` is on the CPU, `inputs` are its keyword arguments. Tolerances are
    torch's own for the dtype.
    """

    def run(model, inputs, mode):
        expected = model(**inputs)
        if mode == "device tensors":
            model = copy.deepcopy(model).to("vulkan")
            inputs = {name: value.to("vulkan") for name, value in inputs.items()}
        before = dict(counters.fallbacks)
        actual = torch.compile(model, backend="vulkan", fullgraph=True)(**inputs)
        assert counters.fallbacks == before
        assert counters.dispatches > 0
        assert set(actual.keys()) == set(expected.keys())
        for name, value in expected.items():
            result = actual[name]
            assert result.device.type == ("vulkan" if mode == "device tensors" else "cpu")
            torch.testing.assert_close(result.cpu(), value, msg=lambda text, name=name: f"{name}: {text}")

    return run
