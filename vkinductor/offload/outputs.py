"""Results of a device graph as CPU tensors: what aliased on the device aliases on the CPU.

An output that looks into an input becomes a view of the CPU input; outputs that share one storage of their own are
views of one copy; every other output is copied with its strides. Gradients flow through all three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Pair:
    """A CPU input and the device tensor that stood for it.

    ``shift``: offset of the device tensor minus that of ``source``, in elements; ``history``: the device tensor's
    grad_fn before the call.
    """

    source: torch.Tensor
    mirror: torch.Tensor
    shift: int
    history: Any


class HostOutputs:
    """Brings the outputs of one call to the CPU."""

    def __init__(self, pairs: dict[int, Pair], outputs: Sequence[Any]) -> None:
        self._inputs: dict[int, list[Pair]] = {}
        for pair in pairs.values():
            self._inputs.setdefault(pair.mirror.untyped_storage()._cdata, []).append(pair)
        self._outputs: dict[int, list[torch.Tensor]] = {}
        for output in outputs:
            if _on_device(output):
                self._outputs.setdefault(output.untyped_storage()._cdata, []).append(output)
        self._copies: dict[int, torch.Tensor | None] = {}

    def of(self, output: Any) -> Any:
        """``output`` on the CPU; what is no device tensor comes back as it is."""
        if not _on_device(output):
            return output
        key = output.untyped_storage()._cdata
        result = None
        if key in self._inputs:
            result = _view_of_input(output, self._inputs[key])
        elif len(self._outputs[key]) > 1:
            result = self._view_of_copy(output, key)
        return _copy(output) if result is None else result

    def _view_of_copy(self, output: torch.Tensor, key: int) -> torch.Tensor | None:
        """A view of the one CPU copy of the output's storage; None when autograd could not follow."""
        if key not in self._copies:
            self._copies[key] = _whole(self._outputs[key])
        whole = self._copies[key]
        if whole is None or whole.dtype != output.dtype:
            return None
        source = whole if output.requires_grad else whole.detach()
        return source.as_strided(output.size(), output.stride(), output.storage_offset())


def _whole(outputs: list[torch.Tensor]) -> torch.Tensor | None:
    """A CPU copy of the storage that ``outputs`` share, with the history of those that have one."""
    grown = next((o for o in outputs if o.requires_grad), None)
    if grown is None:
        first = outputs[0]
        count = first.untyped_storage().nbytes() // first.itemsize
        return torch.as_strided(first.detach(), (count,), (1,), 0).cpu()
    # Views with a gradient have a base: it is copied with its history.
    base = grown if grown._base is None else grown._base
    whole = base.cpu()
    return whole if base.storage_offset() == 0 and whole.stride() == base.stride() else None


def _on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "vulkan"


def _view_of_input(output: torch.Tensor, pairs: list[Pair]) -> torch.Tensor | None:
    """The view of a CPU input that ``output`` is of its mirror; None for one in another dtype that has a gradient."""
    base = output._base
    pair = next((p for p in pairs if output is p.mirror), None)
    if pair is not None:
        return pair.source
    pair = next((p for p in pairs if base is not None and (base is p.mirror or base is p.mirror._base)), pairs[0])
    source = pair.source
    if output.dtype == source.dtype:
        source = source if output.requires_grad or not source.requires_grad else source.detach()
        return source.as_strided(output.size(), output.stride(), output.storage_offset() - pair.shift)
    if output.requires_grad:
        return None
    shift = pair.shift * source.itemsize // output.itemsize
    view = torch.empty(0, dtype=output.dtype)
    return view.set_(source.untyped_storage(), output.storage_offset() - shift, output.size(), output.stride())


def _copy(output: torch.Tensor) -> torch.Tensor:
    """A CPU tensor with the values and strides of ``output``."""
    if any(step == 0 and n > 1 for n, step in zip(output.size(), output.stride(), strict=True)):
        index = tuple(slice(0, 1) if step == 0 else slice(None) for step in output.stride())
        return _copy(output[index]).expand(output.size())
    host = output.cpu()
    if host.stride() == output.stride() or output.numel() == 0:
        return host
    return torch.empty_strided(output.size(), output.stride(), dtype=output.dtype).copy_(host)
