"""What tests of tuning share."""

from __future__ import annotations

from vkinductor.codegen.tuning.family import Bucket, Size


def bucket(kind: str = "float16 nn", **sizes: int) -> Bucket:
    """Problems of ``kind`` with these fixed sizes."""
    return Bucket(kind, tuple(Size(name, value) for name, value in sizes.items()))
