"""Random numbers whose parameters are tensors, in compiled graphs. Eager ones are in device/distributions.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vkinductor.device import operators

aten = torch.ops.aten


def _law(law: str) -> Callable[..., Any]:
    def draw(*args: Any, generator: Any = None) -> Any:
        parameters = [value for value in args if isinstance(value, torch.Tensor)]
        if generator is not None or any(value is not None for value in args[len(parameters) :]):
            return NotImplemented
        seed = torch.randint(-(2**62), 2**62, (), dtype=torch.int64, device=parameters[0].device)
        return operators.draw(law, seed, *parameters)

    return draw


def _dirichlet(concentration: Any, generator: Any = None) -> Any:
    drawn = _law("gamma")(concentration, generator=generator)
    return drawn if drawn is NotImplemented else drawn / drawn.sum(-1, keepdim=True)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.poisson.default: _law("poisson"),
    aten.binomial.default: _law("binomial"),
    aten._standard_gamma.default: _law("gamma"),
    aten._sample_dirichlet.default: _dirichlet,
}
