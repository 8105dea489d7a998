"""Which entries belong together: what may stay on the CPU, what is known not to work and why, what CI always checks."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from fnmatch import fnmatchcase

# Decompositions, Fourier transforms and complex numbers: on the CPU for now.
ON_THE_CPU: dict[str, tuple[str, ...]] = {
    "linear algebra": (
        "linalg.*", "cholesky", "cholesky_*", "lu", "lu_*", "qr", "svd", "svd_lowrank", "pca_lowrank", "geqrf", "ormqr",
        "triangular_solve", "logdet", "matrix_exp", "pinverse",
    ),
    "fft": ("fft.*", "stft", "istft"),
    "complex": ("complex", "polar", "view_as_complex", "view_as_real", "cfloat", "cdouble", "chalf", "real", "imag"),
}  # fmt: skip

# Pattern of entries -> why they cannot run on the device at all: such a verdict is "unsupported", or an error.
REASONS: dict[str, str] = {
    "sparse.*": "sparse storage",
    "to_sparse": "sparse storage",
    "view_as_complex": "complex numbers",
    "cfloat": "complex numbers",
    "cdouble": "complex numbers",
    "chalf": "complex numbers",
    "jiterator_*": "CUDA alone",
}

# Of half precision input these return statistics in float32 on torch's other devices, in half precision on the CPU.
STATISTICS = ("native_layer_norm",)

# Entries of every kind, checked in CI each time; a shard that changes by the day comes on top.
FAST = (
    "add", "sub", "mul", "div.floor_rounding", "pow", "exp", "log1p", "erf", "tanh", "where", "clamp",
    "bitwise_xor", "sum", "mean", "prod", "amax", "argmin", "std", "logsumexp", "softmax", "cumsum", "cummax",
    "sort", "topk", "median", "matmul", "bmm", "baddbmm", "nn.functional.linear", "nn.functional.conv2d",
    "nn.functional.conv_transpose1d", "nn.functional.max_pool2d", "nn.functional.avg_pool2d",
    "nn.functional.interpolate.bilinear", "nn.functional.layer_norm", "nn.functional.batch_norm",
    "nn.functional.embedding", "nn.functional.cross_entropy", "nn.functional.scaled_dot_product_attention", "cat",
    "stack", "gather", "scatter_add", "index_select", "index_put", "masked_fill", "roll", "flip", "tril", "view",
    "permute", "expand", "unfold", "split", "nonzero", "unique", "bincount", "searchsorted", "multinomial",
    "nn.functional.dropout", "special.i0e", "igamma",
)  # fmt: skip


def on_the_cpu(name: str) -> str | None:
    """Of what kind an entry is that may stay on the CPU, or None."""
    return next((kind for kind, patterns in ON_THE_CPU.items() if _fits(name, patterns)), None)


def reason(name: str) -> str | None:
    """Why an entry cannot run on the device, or None."""
    return next((why for pattern, why in REASONS.items() if fnmatchcase(name, pattern)), None)


def of_the_day(names: Sequence[str], parts: int, day: datetime.date | None = None) -> list[str]:
    """One of ``parts`` parts of the entries, another each day."""
    at = (day or datetime.date.today()).toordinal() % parts
    return list(names[at::parts])


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
