"""Whether a GGUF file may be believed: its structure is walked once, bounds first, before any parser allocates for it.

Owns no reading: gguf_file.py, `gguf` and `transformers` read what has passed. The latter size lists, arrays and whole
models by numbers from the file, so a damaged or hostile one could make them run for hours or take all memory. Layout of
the format: ggml's docs/gguf.md; sizes of quantized blocks: the `gguf` package's table.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vkinductor.llm.errors import MissingDependencyError, ModelFormatError

VERSIONS = (2, 3)
MOST_DIMENSIONS = 4
MOST_NESTED_ARRAYS = 4
LONGEST_NAME = 1 << 16
DEFAULT_ALIGNMENT = 32
# Elements of a list of numbers or strings that are kept to be looked at; longer ones are only walked over.
_KEPT = 256

_STRING, _ARRAY, _BOOL = 8, 9, 7
# Type number: struct format of a scalar.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "?", 10: "Q", 11: "q", 12: "d"}

# Hyperparameters by which a model is allocated, and the dimension of a tensor that has to be equal, in gguf's order
# (fastest first).
_EQUAL = (
    ("embedding_length", "token_embd.weight", 0),
    ("vocab_size", "token_embd.weight", 1),
    ("feed_forward_length", "blk.0.ffn_down.weight", 0),
)
# And those that may be at most a width of the model.
_WIDTHS = (
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
)
LONGEST_CONTEXT = 1 << 28


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies: ggml's number of its `format`, its shape (fastest dimension first), first byte and bytes."""

    format: int
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass
class Contents:
    """What a file says about itself: scalars and short lists by key, each tensor's shape (fastest dimension first) and
    place."""

    values: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    tensors: dict[str, Entry] = field(default_factory=dict)


def check(path: Path) -> Contents:
    """Walk the GGUF file `path` and return what it holds; raises ModelFormatError as `examine` does."""
    if path.stat().st_size == 0:  # which cannot be mapped
        return examine(b"", str(path))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return examine(data, str(path))


def examine(data: bytes | bytearray | mmap.mmap, name: str, whole: Collection[str] = ()) -> Contents:
    """Walk `data`, the bytes of a GGUF file called `name`, and return what it holds.

    Lists are cut short but for those under the keys `whole`. Raises ModelFormatError, with the place, if anything lies
    outside of the file, has an unknown type, is there twice, or contradicts something else; MissingDependencyError
    without `gguf`. Takes memory for names and short values only,
    time linear in the file's header.
    """
    try:
        contents = _Walk(data, _block_sizes(), whole).contents()
        _check_model(contents)
    except _DamageError as error:
        raise ModelFormatError(f"{name} is damaged or holds no model: {error}") from None
    return contents


def _block_sizes() -> dict[int, tuple[int, int]]:
    """Number of a tensor's type -> (elements of a block, its bytes)."""
    try:
        import gguf
    except ImportError as error:
        raise MissingDependencyError(f"{error}: run `pip install 'vkinductor[demo]'`") from error
    return {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}


class _DamageError(Exception):
    """What is wrong, without the file's name."""


@dataclass
class _Walk:
    """One pass over a file's header."""

    data: Any
    block_sizes: dict[int, tuple[int, int]]
    whole: Collection[str] = ()
    at: int = 0
    kept: int = _KEPT

    def contents(self) -> Contents:
        found = Contents()
        if bytes(self.data[:4]) != b"GGUF":
            raise _DamageError(f"it begins with {bytes(self.data[:4])!r}")
        self.at = 4
        version = self.scalar("I", "the version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            order = " (of the other byte order)" if swapped in VERSIONS else ""
            raise _DamageError(f"version {version}{order}, not one of {VERSIONS}")
        tensors, pairs = self.scalar("Q", "the number of tensors"), self.scalar("Q", "the number of keys")
        # The least bytes that each takes: what follows is then bounded by the file's length.
        self.room(pairs, 8 + 4 + 1, "keys")
        for _ in range(pairs):
            key = self.name("a key")
            if key in found.values:
                raise _DamageError(f"key {key!r} is there twice")
            self.kept = len(self.data) if key in self.whole else _KEPT
            found.values[key] = self.value(self.scalar("I", f"the type of {key!r}"), repr(key))
        self.room(tensors, 8 + 4 + 8 + 4 + 8, "tensors")
        ends = [self.tensor(found) for _ in range(tensors)]
        start = self.aligned(found.values.get("general.alignment", DEFAULT_ALIGNMENT))
        for name, format, offset, nbytes in ends:
            if offset % (start[1]) or start[0] + offset + nbytes > len(self.data):
                raise _DamageError(
                    f"tensor {name!r}: {nbytes} bytes at {start[0]} + {offset} of a file of {len(self.data)}, "
                    f"in steps of {start[1]}"
                )
            found.tensors[name] = Entry(format, found.shapes[name], start[0] + offset, nbytes)
        return found

    def aligned(self, step: Any) -> tuple[int, int]:
        """Where the tensors' data begins, and the step of their offsets."""
        if not isinstance(step, int) or step < 1 or step & (step - 1):
            raise _DamageError(f"general.alignment is {step!r}, not a power of two")
        return -(-self.at // step) * step, step

    def room(self, count: int, least: int, what: str) -> None:
        if count * least > len(self.data) - self.at:
            raise _DamageError(f"{count} {what} cannot be in the {len(self.data) - self.at} bytes left at {self.at}")

    def scalar(self, kind: str, what: str) -> Any:
        form = struct.Struct("<" + kind)
        self.room(1, form.size, what)
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return value

    def text(self, what: str, longest: int) -> bytes:
        length = self.scalar("Q", f"the length of {what}")
        if length > longest:
            raise _DamageError(f"{what} at {self.at} has a length of {length}")
        self.room(length, 1, what)
        self.at += length
        return bytes(self.data[self.at - length : self.at])

    def name(self, what: str) -> str:
        try:
            return self.text(what, LONGEST_NAME).decode()
        except UnicodeDecodeError:
            raise _DamageError(f"{what} before {self.at} is no UTF-8") from None

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        """A scalar, a string's bytes, or the first elements of a list."""
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind], what)
        if kind == _STRING:
            return self.text(what, len(self.data))
        if kind != _ARRAY or depth >= MOST_NESTED_ARRAYS:
            raise _DamageError(f"{what} at {self.at} has the unknown type {kind}")
        inner, count = self.scalar("I", f"the type in {what}"), self.scalar("Q", f"the length of {what}")
        if inner in _SCALARS:
            width = struct.calcsize("<" + _SCALARS[inner])
            self.room(count, width, f"elements of {what}")
            end = self.at + count * width
            kept = [self.value(inner, what) for _ in range(min(count, self.kept))]
            self.at = end
            return kept
        self.room(count, 8, f"elements of {what}")
        return [self.value(inner, what, depth + 1) for _ in range(count)][: self.kept]

    def tensor(self, found: Contents) -> tuple[str, int, int, int]:
        """Notes a tensor's shape; returns its name, format, offset and bytes."""
        name = self.name("a tensor's name")
        if name in found.shapes:
            raise _DamageError(f"tensor {name!r} is there twice")
        dimensions = self.scalar("I", f"the dimensions of {name!r}")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise _DamageError(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(self.scalar("Q", f"the shape of {name!r}") for _ in range(dimensions))
        kind, offset = self.scalar("I", f"the type of {name!r}"), self.scalar("Q", f"the place of {name!r}")
        if kind not in self.block_sizes:
            raise _DamageError(f"tensor {name!r} is of the unknown type {kind}")
        block, nbytes = self.block_sizes[kind]
        if not all(shape) or shape[0] % block:
            raise _DamageError(f"tensor {name!r} of shape {shape} has no whole blocks of {block}")
        found.shapes[name] = shape
        return name, kind, offset, math.prod(shape) // block * nbytes  # Python's integers: no wrapping


def _check_model(contents: Contents) -> None:
    """Hyperparameters by which memory is taken have to agree with the tensors."""
    values, shapes = contents.values, contents.shapes
    architecture = values.get("general.architecture")
    if not isinstance(architecture, bytes) or not architecture.isascii():
        raise _DamageError(f"general.architecture is {architecture!r}")
    prefix = architecture.decode() + "."
    widest = max((length for shape in shapes.values() for length in shape), default=0)

    def require(key: str, holds: Callable[[int], bool], wanted: str) -> None:
        value = values.get(prefix + key)
        for number in value if isinstance(value, list) else [] if value is None else [value]:
            if isinstance(number, bool) or not isinstance(number, int) or not holds(number):
                raise _DamageError(f"{prefix}{key} is {number!r}, but {wanted}")

    layers = len({name.split(".")[1] for name in shapes if name.startswith("blk.")})
    require("block_count", lambda n: n == layers, f"the file has tensors of {layers} layers")
    require("context_length", lambda n: 0 < n <= LONGEST_CONTEXT, f"at most {LONGEST_CONTEXT} is believable")
    for key, tensor, dimension in _EQUAL:
        if tensor in shapes and dimension < len(shapes[tensor]):
            length = shapes[tensor][dimension]
            require(key, lambda n, length=length: n == length, f"{tensor!r} has {length}")  # type: ignore[misc]
    for key in _WIDTHS:
        require(key, lambda n: 0 < n <= widest, f"no tensor is wider than {widest}")
