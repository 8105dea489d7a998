"""A GGUF file, mapped: values by key and tensors as views of the file's own bytes.

Owns the mapping and typed access. Whether the file may be believed is gguf_check.py's, what its tensors mean is
gguf_model.py's. Nothing is read twice: pages come in when a tensor is used, and no tensor is expanded here.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vkinductor.device.quantized import FORMATS
from vkinductor.llm.errors import ModelFormatError, UnsupportedModelError
from vkinductor.llm.gguf_check import Entry, examine

# ggml's numbers of the types that are plain numbers.
FLOATS: dict[int, torch.dtype] = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16, 28: torch.float64}


class GGUFFile:
    """The GGUF file `path`, checked and mapped; lists under the keys `whole` are kept in full.

    Raises ModelFormatError for a file that contradicts itself. The map is private and nothing writes to it; tensors
    keep it alive.
    """

    def __init__(self, path: Path, whole: Collection[str] = ()):
        self.path = path
        if path.stat().st_size == 0:  # which cannot be mapped
            examine(b"", str(path))
        with path.open("rb") as file:
            # A private copy instead of a read-only map: torch's tensors have to be of memory that may be written.
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self.contents = examine(data, str(path), whole)
        self._bytes = np.frombuffer(data, np.uint8)
        self.architecture: str = self.contents.values["general.architecture"].decode()

    def __contains__(self, name: str) -> bool:
        return name in self.contents.tensors

    def entry(self, name: str) -> Entry:
        """Where the tensor `name` lies; raises ModelFormatError if the file has none."""
        try:
            return self.contents.tensors[name]
        except KeyError:
            raise ModelFormatError(f"{self.path} has no tensor {name!r}, which its architecture needs") from None

    def tensor(self, name: str) -> tuple[torch.Tensor, int | None]:
        """The tensor `name` as the file has it, slowest dimension first, and the number of its block format.

        Numbers come in their own dtype and with None; blocks as uint8 of shape (..., bytes of a row). Raises
        ModelFormatError if there is none and UnsupportedModelError for a format that is not in the table.
        """
        entry = self.entry(name)
        data = self._bytes[entry.start : entry.start + entry.nbytes]
        rows = tuple(reversed(entry.shape))
        if entry.format in FORMATS:
            return torch.from_numpy(data).view(*rows[:-1], FORMATS[entry.format].row_bytes(rows[-1])), entry.format
        if entry.format not in FLOATS:
            raise UnsupportedModelError(
                f"{self.path}: tensor {name!r} is of type {_type_name(entry.format)}; weights stay packed in "
                f"{', '.join(f.name for f in FORMATS.values())}"
            )
        dtype = FLOATS[entry.format]
        if entry.start % dtype.itemsize:  # a file may be aligned to less than its numbers
            data = data.copy()
        return torch.from_numpy(data).view(dtype).view(rows), None

    def value(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """The value of `key`, text decoded, or `default`; raises ModelFormatError if it is there and not a `kind`."""
        value = self.contents.values.get(key)
        if value is None:
            return default
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ModelFormatError(f"{self.path}: {key} is {value!r}")
        return value

    def hyperparameter(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """`value` of the architecture's own `key`; raises ModelFormatError if it is missing and has no default."""
        value = self.value(f"{self.architecture}.{key}", kind, default)
        if value is None:
            raise ModelFormatError(f"{self.path}: no {self.architecture}.{key}")
        return value


def _type_name(number: int) -> str:
    import gguf

    return str(gguf.GGMLQuantizationType(number).name)
