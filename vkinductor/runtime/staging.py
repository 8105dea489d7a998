"""Host-visible memory that passes data to and from the device: argument blocks, uploads, downloads.

Owns a ring of chunks. A piece stays valid until the submission it was taken for has finished; which one that
is, and waiting for it, is the stream's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vkinductor.runtime.blocks import Block, BlockFactory


class Piece(NamedTuple):
    """Part of a chunk: its block, byte offset in the buffer, host pointer and (biased) device address."""

    block: Block
    offset: int
    host: int
    address: int


class _Chunk:
    __slots__ = ("block", "last_value")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.last_value = 0


class HostRing:
    """Chunks of one memory type, handed out in order and taken up again when their last submission has
    finished.

    chunk_bytes: size of a chunk and of the largest piece. max_chunks: beyond these, `wait` is asked for the
    oldest. next_value: the value that the submission being recorded will signal. completed: the value reached
    so far.
    """

    def __init__(
        self,
        factory: BlockFactory,
        memory_type: int,
        chunk_bytes: int,
        max_chunks: int,
        next_value: Callable[[], int],
        completed: Callable[[], int],
        wait: Callable[[int], None],
    ) -> None:
        self.chunk_bytes = chunk_bytes
        self._factory, self._memory_type = factory, memory_type
        self._max_chunks = max_chunks
        self._next_value, self._completed, self._wait = next_value, completed, wait
        self._chunks: list[_Chunk] = []  # oldest use first; the last one is being filled
        self._at = 0

    def take(self, nbytes: int) -> Piece:
        """`nbytes` (at most `chunk_bytes`, 256-byte aligned) for commands of the submission being recorded.

        May submit what is recorded and wait: take all pieces of a command before recording it.
        """
        size = (nbytes + 255) & ~255
        assert size <= self.chunk_bytes, (nbytes, self.chunk_bytes)
        chunk = self._chunks[-1] if self._chunks else None
        if chunk is None or self._at + size > self.chunk_bytes:
            chunk = self._next()
            self._at = 0
        at = self._at
        self._at = at + size
        chunk.last_value = self._next_value()
        block = chunk.block
        return Piece(block, block.skew + at, block.host + at, block.base + at)

    def _next(self) -> _Chunk:
        if self._chunks:
            oldest = self._chunks[0]
            full = len(self._chunks) >= self._max_chunks
            if full and oldest.last_value > self._completed():
                self._wait(oldest.last_value)
            if full or oldest.last_value <= self._completed():
                self._chunks.append(self._chunks.pop(0))
                return self._chunks[-1]
        chunk = _Chunk(self._factory.create(self.chunk_bytes, self._memory_type))
        self._chunks.append(chunk)
        return chunk

    def close(self) -> None:
        """Destroy the chunks; the device must be idle."""
        for chunk in self._chunks:
            self._factory.destroy(chunk.block)
        self._chunks.clear()
        self._at = 0
