"""The families of kernels, a module for each kind of template."""

from __future__ import annotations

from ..program import Family
from . import attention, convolutions, integers, linears, orders, pointwise, products, quantized, rows, sampling, steps

_MODULES: tuple[tuple[Family, ...], ...] = (
    products.FAMILIES, integers.FAMILIES, quantized.FAMILIES, linears.FAMILIES,
    attention.FAMILIES, steps.FAMILIES, convolutions.FAMILIES, rows.FAMILIES, pointwise.FAMILIES, orders.FAMILIES,
    sampling.FAMILIES,
)  # fmt: skip
FAMILIES: dict[str, Family] = {family.name: family for families in _MODULES for family in families}
