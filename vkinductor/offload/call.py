"""Calls a compiled device graph with CPU tensors: mirrors in, results out, autograd across both edges."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .mirrors import mirrors
from .outputs import HostOutputs, Pair


class ToDevice(torch.autograd.Function):
    """Identity from a CPU tensor to its mirror; the gradient comes back to the CPU."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, mirror: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        # Not a view to autograd, so that the graph may write it; yet it shares the mirror's version counter, so that
        # a write by one graph is noticed by the backward of another that saved the mirror.
        return mirror.detach()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        (grad,) = grads
        return None if grad is None else grad.cpu(), None


@dataclass(frozen=True)
class Known:
    """What the last call was lent for an argument: good for the same tensor as long as it has not changed."""

    argument: weakref.ref[torch.Tensor]
    version: int
    pointer: int
    epoch: int
    view: torch.Tensor

    def serves(self, argument: torch.Tensor) -> bool:
        """Whether ``view`` still is the mirror of ``argument``."""
        return (
            self.argument() is argument
            and self.version == argument._version
            and self.pointer == argument.data_ptr()
            and self.epoch == mirrors.epoch
        )


class OffloadedGraph:
    """A compiled graph whose inputs and outputs live on the CPU.

    ``written``: positions of inputs that the graph writes; ``stay``: of CPU tensors it takes as they are.
    ``on_host``: for each output whether it goes to the CPU. ``aliased``: inputs share storages.
    """

    def __init__(
        self,
        compiled: Callable[..., Any],
        written: frozenset[int],
        on_host: tuple[bool, ...],
        stay: frozenset[int] = frozenset(),
        aliased: bool = False,
    ) -> None:
        self.compiled = compiled
        self.written = written
        self.on_host = on_host
        self.stay = stay
        # Weights come again and again: they are recognised before the mirrors are asked. What is written or shares a
        # storage is not: all of a storage must come from one mirror.
        self._recognised = not aliased
        self._known: dict[int, Known] = {}
        self._boxed_call = False

    def __call__(self, *args: Any) -> Any:
        """Inputs and outputs as Dynamo passes them: flat, CPU tensors or numbers.

        Raises VulkanOutOfMemoryError, DeviceLostError and UnsupportedError (a dtype the device lacks); inputs that
        the graph writes keep their values then.
        """
        positions = [
            i
            for i, arg in enumerate(args)
            if isinstance(arg, torch.Tensor) and arg.device.type == "cpu" and i not in self.stay
        ]
        views = self._borrow(args, positions)
        moved = list(args)
        pairs = {}
        with_grad = torch.is_grad_enabled()
        for i, view in zip(positions, views, strict=True):
            source = args[i]
            if with_grad and source.requires_grad:
                view = ToDevice.apply(source, view)
            moved[i] = view
            pairs[i] = Pair(source, view, view.storage_offset() - source.storage_offset(), view.grad_fn)
        try:
            outputs = self.compiled(*moved)
            self._write_back(pairs)
        except BaseException:
            # Nobody knows what the mirrors of written inputs hold now.
            for i in self.written & pairs.keys():
                mirrors.forget(args[i])
            raise
        results = HostOutputs(pairs, outputs)
        return tuple(results.of(output) if host else output for output, host in zip(outputs, self.on_host, strict=True))

    def _borrow(self, args: tuple[Any, ...], positions: list[int]) -> list[torch.Tensor]:
        """The mirrors of the arguments at ``positions``."""
        known = {}
        if self._recognised:
            for i in positions:
                entry = self._known.get(i)
                if entry is not None and entry.serves(args[i]):
                    known[i] = entry.view
        missing = [i for i in positions if i not in known]
        if missing:
            epoch = mirrors.epoch
            for i, view in zip(missing, mirrors.lend([args[i] for i in missing]), strict=True):
                known[i] = view
                if self._recognised and i not in self.written:
                    self._remember(i, args[i], view, epoch)
        return [known[i] for i in positions]

    def _remember(self, i: int, argument: torch.Tensor, view: torch.Tensor, epoch: int) -> None:
        if argument.is_inference():
            self._known.pop(i, None)
            return
        known = self._known  # not self: the callback must not keep the graph

        def forget(dead: Any) -> None:
            entry = known.get(i)
            if entry is not None and entry.argument is dead:
                del known[i]

        known[i] = Known(weakref.ref(argument, forget), argument._version, argument.data_ptr(), epoch, view)

    def _write_back(self, pairs: dict[int, Pair]) -> None:
        """Give inputs what the graph wrote into their mirrors, each piece of memory once."""
        done = set()
        for i in sorted(self.written & pairs.keys()):
            source, mirror = pairs[i].source, pairs[i].mirror
            piece = (source.data_ptr(), source.shape, source.stride(), source.dtype)
            if piece in done:
                continue
            done.add(piece)
            if mirror.grad_fn is not pairs[i].history:
                source.copy_(mirror)  # the write has a gradient of its own
            else:
                with torch.no_grad():
                    source.copy_(mirror.detach())
        written = {pairs[i].source.untyped_storage()._cdata for i in self.written & pairs.keys()}
        if written:
            for pair in pairs.values():
                if pair.source.untyped_storage()._cdata in written:
                    mirrors.wrote(pair.source)
