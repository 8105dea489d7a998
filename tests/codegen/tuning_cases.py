"""What tests of tuning share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from vkinductor.codegen.tuning.family import Bucket, Size


def bucket(kind: str = "float16 nn", **sizes: int) -> Bucket:
    """Problems of ``kind`` with these fixed sizes."""
    return Bucket(kind, tuple(Size(name, value) for name, value in sizes.items()))


@contextmanager
def told() -> Iterator[list[str]]:
    """What tuning warns of."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("vkinductor.codegen.tuning")
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
