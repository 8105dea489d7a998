"""Random numbers whose parameters are tensors: drawn on the device by Philox, as compiled graphs draw them.

The seed of each draw comes from the caller's generator or the device's, so that `torch.manual_seed` repeats them; the
numbers are not those of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from vkinductor.device import operators, random
from vkinductor.device.counted import into
from vkinductor.device.registry import registry

Dispatch = Callable[..., Any]


def kernels(dispatch: Dispatch) -> dict[str, Callable[..., Any]]:
    """The kernels by the operators' names. ``dispatch``: runs an operator that has none of its own."""
    draw = _Draw(dispatch)
    return {
        "bernoulli": draw.bernoulli,
        "bernoulli.out": into(draw.bernoulli),
        "bernoulli_.Tensor": draw.bernoulli_,
        "poisson": draw.poisson,
        "binomial": draw.binomial,
        "_standard_gamma": draw.gamma,
        "_sample_dirichlet": draw.dirichlet,
        "multinomial": draw.multinomial,
        "multinomial.out": into(draw.multinomial),
        **{f"normal.{name}": draw.normal for name in _NORMAL},
        **{f"normal.{name}_out": into(draw.normal) for name in _NORMAL},
        "rrelu_with_noise": draw.rrelu,
        "rrelu_with_noise_": draw.rrelu_,
    }


_NORMAL = ("Tensor_Tensor", "Tensor_float", "float_Tensor")


class _Draw:
    def __init__(self, dispatch: Dispatch) -> None:
        self.dispatch = dispatch

    def _numbers(self, shape: Sequence[int], kind: str, device: torch.device, generator: Any) -> torch.Tensor:
        """float32 of this shape: "rand" uniform in [0, 1), "randn" normal."""
        if registry.compile_op is None:
            op = torch.ops.aten.rand.generator if kind == "rand" else torch.ops.aten.randn.generator
            return random.run_seeded(op, (list(shape),), {"generator": generator}).to(device)
        from torch._inductor import inductor_prims  # noqa: F401  registers the operator that draws

        seed = self._seed(device, generator)
        return self.dispatch(torch.ops.prims.inductor_random.default, list(shape), seed, kind)

    def _seed(self, device: torch.device, generator: Any) -> torch.Tensor:
        op = torch.ops.aten.randint.low_generator
        options = {"generator": generator, "dtype": torch.int64}
        return random.run_seeded(op, (-(2**62), 2**62, ()), options).to(device)

    def _law(self, law: str, generator: Any, *parameters: torch.Tensor) -> torch.Tensor:
        """Numbers of a distribution, computed in float32."""
        return self.dispatch(operators.draw, law, self._seed(parameters[0].device, generator), *parameters)

    def poisson(self, rate: torch.Tensor, generator: Any = None) -> torch.Tensor:
        if rate.numel() and not bool((rate >= 0).all()):
            raise RuntimeError("invalid Poisson rate, expected rate to be non-negative")
        return self._law("poisson", generator, rate)

    def binomial(self, count: torch.Tensor, prob: torch.Tensor, generator: Any = None) -> torch.Tensor:
        return self._law("binomial", generator, count, prob)

    def gamma(self, shape: torch.Tensor, generator: Any = None) -> torch.Tensor:
        return self._law("gamma", generator, shape)

    def dirichlet(self, concentration: torch.Tensor, generator: Any = None) -> torch.Tensor:
        drawn = self._law("gamma", generator, concentration)
        return drawn / drawn.sum(-1, keepdim=True)

    def bernoulli(self, p: torch.Tensor, *, generator: Any = None) -> torch.Tensor:
        return (self._numbers(p.shape, "rand", p.device, generator) < p).to(p.dtype)

    def bernoulli_(self, x: torch.Tensor, p: torch.Tensor, *, generator: Any = None) -> torch.Tensor:
        return x.copy_(self._numbers(x.shape, "rand", x.device, generator) < p.to(x.device))

    def normal(self, mean: Any, std: Any = 1.0, *, generator: Any = None) -> torch.Tensor:
        tensors = [t for t in (mean, std) if isinstance(t, torch.Tensor)]
        shape = torch.broadcast_shapes(*(t.shape for t in tensors))
        if isinstance(std, torch.Tensor) and std.numel() and not bool((std >= 0).all()):
            raise RuntimeError("normal expects all elements of std >= 0.0")
        if not isinstance(std, torch.Tensor) and std < 0:
            raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
        numbers = self._numbers(shape, "randn", tensors[0].device, generator)
        return (mean + std * numbers).to(tensors[0].dtype)

    def multinomial(
        self, p: torch.Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None
    ) -> torch.Tensor:
        """int64 [..., num_samples]: categories of the last dimension, by the weights `p`."""
        if p.dim() not in (1, 2) or not p.is_floating_point():
            raise RuntimeError("multinomial: prob_dist must be 1 or 2 dim, of a floating-point dtype")
        if num_samples <= 0 or (not replacement and num_samples > p.shape[-1]):
            raise RuntimeError(
                "cannot sample n_sample > prob_dist.size(-1) samples without replacement, nor n_sample <= 0"
            )
        if p.numel() == 0:
            return torch.empty((*p.shape[:-1], num_samples), dtype=torch.int64, device=p.device)
        weights = p if p.dtype == torch.float64 else p.float()
        if not bool(((weights >= 0) & (weights < torch.inf)).all() & (weights.sum(-1) > 0).all()):
            raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0, or sums to 0")
        if not replacement:
            # The order of weights over exponential numbers is that of drawing one after another (Efraimidis and
            # Spirakis, "Weighted random sampling with a reservoir", 2006).
            waits = torch.log1p(-self._numbers(p.shape, "rand", p.device, generator)).neg().clamp(min=1e-30)
            return (weights / waits).topk(num_samples, -1).indices
        shape = (*p.shape[:-1], num_samples)
        sums = weights.cumsum(-1)
        numbers = self._numbers(shape, "rand", p.device, generator) * sums[..., -1:]
        # Zero weights are never chosen: the first sum above the number has one.
        last = (weights > 0).to(torch.int64) * torch.arange(p.shape[-1], device=p.device)
        return torch.searchsorted(sums, numbers.to(sums.dtype), right=True).minimum(last.amax(-1, keepdim=True))

    def rrelu(
        self,
        x: torch.Tensor,
        noise: torch.Tensor,
        lower: float = 1 / 8,
        upper: float = 1 / 3,
        training: bool = False,
        generator: Any = None,
    ) -> torch.Tensor:
        """Negative elements times a slope that is drawn for each in training; the slopes stay in `noise`."""
        if not training:
            return torch.nn.functional.leaky_relu(x, (lower + upper) / 2)
        slope = lower + (upper - lower) * self._numbers(x.shape, "rand", x.device, generator)
        noise.copy_(torch.where(x <= 0, slope, 1))
        return x * noise

    def rrelu_(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return x.copy_(self.rrelu(x, *args, **kwargs))
