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
from vkinductor.runtime.replay.capture import Access, Launch, Pointer

from .build import Built, Output
from .clock import Clock
from .family import Operand, Operation
from .select import Times

# Bytes that the operands of all copies take together: more than twice the cache of a large GPU (H100: 50 MiB).
ROTATED = 128 << 20
ROTATED_CPU = 16 << 20
MOST_COPIES = 256
# Calls in a row that write memory of their own, of so many bytes at most but for two: what is written again is waited
# for. With one, 128x4096x16384 took 92 us instead of 56 (H200); with four, 16x4096x4096 took 10 instead of 8.
APART, APART_BYTES = 16, 256 << 20
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

    def region(self, what: Any, nbytes: int) -> int:
        """The address of ``nbytes`` bytes that all who name ``what`` share."""
        known = self._regions.setdefault(what, [])
        for size, address in known:
            if size >= nbytes:
                return address
        address = self.device.memory.allocate(_aligned(nbytes))
        known.append((_aligned(nbytes), address))
        return address

    def places(self, what: Any, nbytes: int, turns: int) -> tuple[int, int]:
        """The address of so many bytes for each of ``turns``, and for how many of them: of two at least, and of more as
        long as they are few bytes."""
        count = max(2, min(turns, APART_BYTES // _aligned(nbytes)))
        return self.region(what, count * _aligned(nbytes)), count

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


class Calls:
    """Calls of a candidate, each on the next copy of the operands. ``waiting``: whether each waits for the one before,
    as in a model. ``count``: calls a sample, see ``clock``; 0 until it is known how long one takes."""

    def __init__(self, workspace: Workspace, calls: list[list[Any]], waiting: bool) -> None:
        self.count = 0
        self._waiting = waiting
        self._calls = calls
        self._next = 0
        self._stream = workspace.device.stream
        self._cost = (workspace.operation.nbytes, workspace.operation.flops)

    def run(self, count: int = 1) -> None:
        """Dispatch ``count`` calls."""
        stream, (nbytes, flops) = self._stream, self._cost
        for _ in range(count):
            if self._waiting:
                stream.barrier()
            for pipeline, groups, args, reads, writes in self._calls[self._next]:
                stream.dispatch(pipeline, groups, args, reads, writes, nbytes, flops)
            self._next = (self._next + 1) % len(self._calls)

    def first(self) -> None:
        """Dispatch the call on the first copy."""
        self._next = 0
        self.run()


class Runner:
    """A candidate with addresses, as calls that wait for each other and as ``independent`` ones, which write nothing
    that another one touches, as far as there are copies."""

    def __init__(self, built: Built, workspace: Workspace) -> None:
        self.built = built
        self._workspace = workspace
        spans = [_aligned(built.sizes[r]) for r in built.made]
        turns = max(workspace.copies, 2, min(APART, APART_BYTES // max(1, sum(spans))))
        results = workspace.region("results", sum(spans) * turns)
        intermediates = [
            (r, *workspace.places(("intermediate", r), built.sizes[r], turns))
            for r in range(built.operands, len(built.sizes))
            if r not in built.made and r not in built.kept
        ]
        calls = []
        for copy in range(turns):
            operands = workspace.operands[copy % workspace.copies]
            first = results + copy * sum(spans)
            made = {r: first + sum(spans[:i]) for i, r in enumerate(built.made)}
            own = {r: base + copy % count * _aligned(built.sizes[r]) for r, base, count in intermediates}
            addresses = {**dict(enumerate(operands)), **own, **built.kept, **made}
            if copy == 0:
                self._addresses = addresses
            calls.append(self._bound(addresses, copy))
        self.independent, self.waiting = Calls(workspace, calls, False), Calls(workspace, calls, True)

    def _bound(self, addresses: dict[int, int], copy: int) -> list[Any]:
        made = []
        for launch in self.built.launches:
            parts = _parts(launch, self.built, copy)

            def at(place: Pointer | Access, parts: dict[tuple[int, int], int] = parts) -> int:
                offset = parts.get((place.resource, place.offset), place.offset)
                return addresses[place.resource] + offset

            values = [at(v) if isinstance(v, Pointer) else v for v in launch.values]
            reads = tuple((at(a), a.nbytes) for a in launch.reads)
            writes = tuple((at(a), a.nbytes) for a in launch.writes)
            made.append((launch.pipeline, launch.groups, launch.pipeline.pack(*values), reads, writes))
        return made

    def sample(self, clock: Clock) -> Times:
        """One measurement in both ways; they are one where the problem waits, or the host's clock is all there is."""
        waiting = clock.sample(self.waiting)
        both = clock.on_device and not self._workspace.operation.waits
        return Times(waiting, clock.sample(self.independent) if both else waiting)

    def results(self) -> list[torch.Tensor]:
        """Run on the first copy; the results on the CPU."""
        built, stream = self.built, self._workspace.device.stream
        for output in built.outputs:
            # What an earlier candidate has left there must not pass for a result.
            if output.resource < built.operands:
                self._workspace.restore(output.resource)
            else:
                stream.fill(self._addresses[output.resource], built.sizes[output.resource], 0xFF)
        self.waiting.first()
        return [self._downloaded(output) for output in built.outputs]

    def _downloaded(self, output: Output) -> torch.Tensor:
        nbytes = self.built.sizes[output.resource]
        flat = torch.empty(nbytes, dtype=torch.uint8)
        self._workspace.device.stream.download(flat.data_ptr(), self._addresses[output.resource], nbytes)
        return flat.view(output.dtype).as_strided(output.size, output.stride, output.offset)


def _parts(launch: Launch, built: Built, copy: int) -> dict[tuple[int, int], int]:
    """By (resource, offset): where ``launch`` of the ``copy``-th call writes in the program's own memory, of which each
    takes the next part (``launch.Kernel``'s turns)."""
    found = {}
    for resource, offset, nbytes in launch.writes:
        if resource in built.kept and nbytes:
            turn = offset // nbytes + copy * len(built.launches)
            found[resource, offset] = turn % (built.sizes[resource] // nbytes) * nbytes
    return found
