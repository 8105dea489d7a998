"""Calls a compiled device graph with CPU tensors: mirrors in, results out, autograd across both edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .mirrors import mirrors


class ToDevice(torch.autograd.Function):
    """Identity from a CPU tensor to its mirror; the gradient comes back to the CPU."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, mirror: torch.Tensor) -> torch.Tensor:
        return mirror.view_as(mirror)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0].cpu(), None


class OffloadedGraph:
    """A compiled graph whose inputs and outputs live on the CPU.

    ``mutated``: positions of inputs the graph writes in place; they are written back after each call.
    """

    def __init__(self, compiled: Callable[..., Any], mutated: Sequence[int]) -> None:
        self.compiled = compiled
        self.mutated = tuple(mutated)
        self._boxed_call = False

    def __call__(self, *args: Any) -> Any:
        """Inputs and outputs as Dynamo passes them: flat, CPU tensors or numbers."""
        moved = list(args)
        found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for i, arg in enumerate(args):
            if not isinstance(arg, torch.Tensor) or arg.device.type != "cpu":
                continue
            mirror = mirrors.get(arg)
            found[mirror.untyped_storage()._cdata] = (arg, mirror)
            if i in self.mutated:
                moved[i] = mirror.requires_grad_(False)
            elif arg.requires_grad and torch.is_grad_enabled():
                moved[i] = ToDevice.apply(arg, mirror)
            else:
                moved[i] = mirror
        originals = {i: moved[i] for i in self.mutated}
        outputs = self.compiled(*moved)
        for i, mirror in originals.items():
            mirrors.write_back(args[i], mirror)
        return self._outputs(outputs, found)

    def _outputs(self, outputs: Any, found: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> Any:
        downloaded: dict[int, torch.Tensor] = {}
        results = []
        for output in outputs:
            if not isinstance(output, torch.Tensor) or output.device.type != "vulkan":
                results.append(output)
                continue
            storage = output.untyped_storage()
            if storage._cdata in found:
                # An output that looks into an input does so on the CPU as well.
                source, _ = found[storage._cdata]
                place = (output.size(), output.stride(), output.storage_offset())
                if source.dtype == output.dtype:
                    results.append(source.as_strided(*place))
                    continue
            if output.requires_grad or storage.nbytes() != output.nbytes:
                results.append(_separate(output, storage, downloaded))
                continue
            results.append(output.cpu())
        return type(outputs)(results)


def _separate(output: torch.Tensor, storage: torch.UntypedStorage, downloaded: dict[int, torch.Tensor]) -> torch.Tensor:
    """Bring one output to the CPU; outputs that share a storage share it there too, unless autograd needs them apart."""
    if output.requires_grad:
        return output.cpu()
    base = downloaded.get(storage._cdata)
    if base is None:
        device_bytes = torch.empty(0, dtype=torch.uint8, device=output.device)
        device_bytes.set_(storage, 0, (storage.nbytes(),), (1,))
        base = downloaded[storage._cdata] = device_bytes.cpu()
    result = torch.empty(0, dtype=output.dtype)
    return result.set_(base.untyped_storage(), output.storage_offset(), output.size(), output.stride())
