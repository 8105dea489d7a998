"""Entries of torch's own catalogue of operators: `op_db` of torch.testing._internal.common_methods_invocations."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from vkinductor.conformance.entry import DTYPES, Entry, Sample

# Results that are random or whatever memory held; the catalogue marks only some of them, and only since torch 2.12.
_RANDOM = {
    *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "uniform"),
    *("rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "svd_lowrank", "pca_lowrank"),
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
    *("nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.rrelu"),
    *("nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout"),
    *("nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d"),
    "nn.functional.multi_head_attention_forward",  # with dropout
}

# uint8 images are resampled in fixed point by the CPU kernel alone. torch's tests of Inductor
# (test_torchinductor_opinfo.py, inductor_override_kwargs) allow a difference of 1.
_ROUNDED = (
    "nn.functional.interpolate.bilinear", "nn.functional.interpolate.bicubic", "nn.functional.upsample_bilinear",
)  # fmt: skip

# torch's test suites that compare values of an operator with those of another implementation of it.
_COMPARING = {None, "TestCommon", "TestDecomp", "TestInductorOpInfo"}


@functools.cache
def entries() -> dict[str, Entry]:
    """The entries by name, in the catalogue's order; a variant's name follows a dot."""
    from torch.testing._internal.common_methods_invocations import op_db

    found: dict[str, Entry] = {}
    for info in op_db:
        name = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
        assert name not in found, f"two entries are called {name}"
        found[name] = _entry(name, info)
    return found


def _entry(name: str, info: Any) -> Entry:
    supported = info.supported_dtypes("cpu")
    gradients = info.supported_backward_dtypes("cpu") if info.supports_autograd else ()

    def make(dtype: torch.dtype) -> list[Sample]:
        made = info.sample_inputs("cpu", dtype, requires_grad=dtype in gradients)
        return [Sample((s.input, *s.args), dict(s.kwargs)) for s in made]

    return Entry(
        name,
        info.op,
        tuple(dtype for dtype in DTYPES if dtype in supported),
        frozenset(dtype for dtype in DTYPES if dtype in gradients),
        make,
        not (getattr(info, "has_nondeterministic_output", False) or info.name in _RANDOM),
        dict(_tolerances(info)) | ({torch.uint8: (1.0, 0.0)} if name in _ROUNDED else {}),
    )


def _tolerances(info: Any) -> Iterator[tuple[torch.dtype, tuple[float, float]]]:
    """The widest of an entry in those suites."""
    from torch.testing._internal.common_device_type import toleranceOverride

    widest: dict[torch.dtype, tuple[float, float]] = {}
    for decorator in info.decorators:
        if getattr(decorator, "cls_name", None) not in _COMPARING:
            continue
        for override in getattr(decorator, "decorators", [decorator]):
            if isinstance(override, toleranceOverride):
                for dtype, (absolute, relative) in override.d.items():
                    known = widest.get(dtype, (0.0, 0.0))
                    widest[dtype] = (max(known[0], absolute), max(known[1], relative))
    yield from widest.items()
