"""Random numbers: the device's generator, its seeds and states, and the operators that draw from it.

torch gives a Python device no generator of its own, so the device's is a CPU generator kept here. Numbers are
drawn on the host and uploaded: the same seed gives the same numbers as on the CPU. Compiled graphs take their
seeds from it as well (through `random_`), and then draw on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vkinductor.device import copies, metadata
from vkinductor.device.registry import registry

# Operators that overwrite their first argument with numbers that depend on nothing else.
OVERWRITE = (
    "bernoulli_.float",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "normal_",
    "random_",
    "random_.from",
    "random_.to",
    "uniform_",
)


def generator() -> torch.Generator:
    """The device's generator. Until it is seeded it has the seed of torch's default generator. Opens no
    device."""
    with registry.generator_lock:
        if registry.generator is None:
            registry.generator = torch.Generator()
            registry.generator.manual_seed(torch.initial_seed())
        return registry.generator


def manual_seed(seed: int) -> None:
    """Seed the device; `torch.manual_seed` does so too."""
    with registry.generator_lock:
        generator().manual_seed(int(seed))


def seed() -> int:
    """Seed the device with a number that is not deterministic, and return it."""
    with registry.generator_lock:
        return generator().seed()


def get_state() -> torch.Tensor:
    """The generator's state: uint8 on the CPU."""
    with registry.generator_lock:
        return generator().get_state()


def set_state(state: torch.Tensor) -> None:
    """Continue from a state that `get_state` returned.

    Raises:
        RuntimeError, TypeError: not such a state.
    """
    with registry.generator_lock:
        generator().set_state(state.cpu())


def run_seeded(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a random operator on CPU tensors, drawing from the caller's generator or else from the device's."""
    takes_generator = any(argument.name == "generator" for argument in op._schema.arguments)
    if takes_generator and kwargs.get("generator") is not None:
        return op(*args, **kwargs)
    with registry.generator_lock:
        if takes_generator:
            return op(*args, **{**kwargs, "generator": generator()})
        # Operators such as native_dropout draw from the default generator: lend it our state.
        default = torch.default_generator
        kept = default.get_state()
        default.set_state(generator().get_state())
        try:
            return op(*args, **kwargs)
        finally:
            generator().set_state(default.get_state())
            default.set_state(kept)


def _overwrite(op: Any) -> Callable[..., torch.Tensor]:
    def kernel(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        host = torch.empty(tensor.size(), dtype=tensor.dtype)
        run_seeded(op, (host, *args), kwargs)
        return copies.copy_(tensor, host)

    return kernel


def register(library: torch.library.Library) -> None:
    """Add the kernels to torch's "aten" library."""
    for name in OVERWRITE:
        library.impl(name, _overwrite(metadata.overload(name)), "PrivateUse1")
