"""Memory that candidates of a problem run on: operands with random contents, several times over, and results.

Calls rotate over the copies, so that no cache of the device holds what the next call reads, as in a model, whose
weights are read once a step.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from vkinductor.device import strides
from vkinductor.runtime.device import Device

from .build import Built, Output
from .family import Operand, Operation

# Bytes that the operands of all copies take together: more than twice the cache of a large GPU (H100: 50 MiB).
ROTATED = 128 << 20
ROTATED_CPU = 16 << 20
MOST_COPIES = 256
_ALIGNMENT = 256
# Values repeat after so many: a prime, which no row length divides.
_PERIOD = 1_000_003


def _aligned(nbytes: int) -> int:
    return max(1, -(-nbytes // _ALIGNMENT)) * _ALIGNMENT


def random_values(operand: Operand, seed: int) -> torch.Tensor:
    """A CPU tensor as ``operand`` describes: normal numbers, integers from -8 (0 where unsigned) to 7, or indices."""
    count = strides.extent(operand.size, operand.stride)
    generator = torch.Generator().manual_seed(seed)
    few = min(count, _PERIOD)
    if operand.dtype.is_floating_point:
        values = torch.randn(few, generator=generator).to(operand.dtype)
    else:
        low, high = (-8 if operand.dtype.is_signed else 0, 8) if not operand.below else (0, operand.below)
        values = torch.randint(low, high, (few,), generator=generator).to(operand.dtype)
    flat = values.repeat(-(-count // max(few, 1)))[:count].contiguous() if count > few else values
    return flat.as_strided(operand.size, operand.stride)


class Workspace:
    """Operands of ``operation`` on the device, ``copies`` times; results and intermediates are shared by candidates.

    Raises VulkanOutOfMemoryError.
    """

    def __init__(self, device: Device, operation: Operation) -> None:
        self.device = device
        self.operation = operation
        self.values = [random_values(operand, seed) for seed, operand in enumerate(operation.operands)]
        sizes = [strides.extent(o.size, o.stride) * o.dtype.itemsize for o in operation.operands]
        spans = [_aligned(nbytes) for nbytes in sizes]
        rotated = ROTATED_CPU if device.info.kind == "cpu" else ROTATED
        self.copies = max(1, min(MOST_COPIES, math.ceil(rotated / max(1, sum(spans) + operation.results))))
        self._regions: dict[Any, list[tuple[int, int]]] = {}
        self._stride = sum(spans)
        base = self.region("operands", self._stride * self.copies)
        self.operands = [
            [base + copy * self._stride + sum(spans[:i]) for i in range(len(spans))] for copy in range(self.copies)
        ]
        self._sizes = sizes
        for i in range(len(sizes)):
            self.restore(i)
        for copy in range(1, self.copies if self.operands[0] else 0):
            device.stream.copy(self.operands[copy][0], self.operands[0][0], self._stride)
        # Each call writes it as far as hazards go: calls wait for each other, as those of a model do.
        self.chain = (self.region("chain", _ALIGNMENT), 4)

    def region(self, what: Any, nbytes: int) -> int:
        """The address of ``nbytes`` bytes that all who name ``what`` share."""
        known = self._regions.setdefault(what, [])
        for size, address in known:
            if size >= nbytes:
                return address
        address = self.device.memory.allocate(_aligned(nbytes))
        known.append((_aligned(nbytes), address))
        return address

    def restore(self, operand: int) -> None:
        """Give an operand its values in the first copy again."""
        values = self.values[operand]
        self.device.stream.upload(self.operands[0][operand], values.data_ptr(), self._sizes[operand])

    def close(self) -> None:
        """Give the memory back."""
        for regions in self._regions.values():
            for _, address in regions:
                self.device.memory.free(address)
        self._regions.clear()


class Runner:
    """A candidate with addresses: what can be run again and again."""

    def __init__(self, built: Built, workspace: Workspace) -> None:
        self.built = built
        self._workspace = workspace
        self._dispatch = workspace.device.stream.dispatch
        operation = workspace.operation
        self._cost = (operation.nbytes, operation.flops)
        spans = [_aligned(built.sizes[r]) for r in built.made]
        results = workspace.region("results", sum(spans) * workspace.copies)
        shared = {
            r: workspace.region(("intermediate", r), built.sizes[r])
            for r in range(built.operands, len(built.sizes))
            if r not in built.made and r not in built.kept
        }
        self._calls = []
        for copy, operands in enumerate(workspace.operands):
            first = results + copy * sum(spans)
            made = {r: first + sum(spans[:i]) for i, r in enumerate(built.made)}
            addresses = {**dict(enumerate(operands)), **shared, **built.kept, **made}
            if copy == 0:
                self._addresses = addresses
            self._calls.append(self._bound(addresses))
        self._next = 0
        # Calls a sample, see ``clock``; 0 until it is known how long one takes.
        self.count = 0

    def _bound(self, addresses: dict[int, int]) -> list[Any]:
        from vkinductor.runtime.replay.capture import Pointer

        made = []
        for launch in self.built.launches:
            values = [addresses[v.resource] + v.offset if isinstance(v, Pointer) else v for v in launch.values]
            reads = tuple((addresses[a.resource] + a.offset, a.nbytes) for a in launch.reads)
            writes = tuple((addresses[a.resource] + a.offset, a.nbytes) for a in launch.writes)
            args = launch.pipeline.pack(*values)
            made.append((launch.pipeline, launch.groups, args, reads, (*writes, self._workspace.chain)))
        return made

    def run(self, count: int = 1) -> None:
        """Dispatch ``count`` calls, each on the next copy of the operands."""
        nbytes, flops = self._cost
        for _ in range(count):
            for pipeline, groups, args, reads, writes in self._calls[self._next]:
                self._dispatch(pipeline, groups, args, reads, writes, nbytes, flops)
            self._next = (self._next + 1) % len(self._calls)

    def results(self) -> list[torch.Tensor]:
        """Run on the first copy; the results on the CPU."""
        built, stream = self.built, self._workspace.device.stream
        for output in built.outputs:
            # What an earlier candidate has left there must not pass for a result.
            if output.resource < built.operands:
                self._workspace.restore(output.resource)
            else:
                stream.fill(self._addresses[output.resource], built.sizes[output.resource], 0xFF)
        self._next = 0
        self.run()
        return [self._downloaded(output) for output in built.outputs]

    def _downloaded(self, output: Output) -> torch.Tensor:
        nbytes = self.built.sizes[output.resource]
        flat = torch.empty(nbytes, dtype=torch.uint8)
        self._workspace.device.stream.download(flat.data_ptr(), self._addresses[output.resource], nbytes)
        return flat.view(output.dtype).as_strided(output.size, output.stride, output.offset)
