"""Reading GGUF files as fast as the parsers of `gguf` and `transformers` allow.

Owns nothing of the format: for the time of one load, `gguf`'s reader is one that is made once for each file
(transformers makes three) and slices plain arrays instead of memory maps, and the table of tensor names is made once
for a model (transformers makes it for each of its modules). Loading SmolLM2-135M takes a third of the time so.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def fast_reading() -> Iterator[None]:
    """Within this context GGUF files are read faster. Does nothing when `gguf` is missing or has changed."""
    try:
        import gguf

        slow = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    except (ImportError, AttributeError):
        yield  # who needs it will say so
        return
    fast = {
        "GGUFReader": functools.cache(_plain(slow["GGUFReader"])),
        "get_tensor_name_map": functools.cache(slow["get_tensor_name_map"]),
    }
    try:
        _replace(gguf, fast)
        yield
    finally:
        _replace(gguf, slow)


def _replace(module: Any, functions: dict[str, Any]) -> None:
    for name, function in functions.items():
        setattr(module, name, function)


def _plain(reader: Any) -> Any:
    """A subclass of gguf's reader whose data is a plain array: a slice of a memory map takes ten times as long."""
    import numpy as np

    class Reader(reader):
        @property
        def data(self) -> Any:
            return self._data

        @data.setter
        def data(self, value: Any) -> None:
            self._data = value.view(np.ndarray)

    return Reader
