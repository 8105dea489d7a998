"""Every family that can be tuned, by name."""

from __future__ import annotations

from .attention import ATTENTION
from .convolution import CONVOLUTION
from .depthwise import DEPTHWISE
from .family import Family
from .gemm import GEMM
from .kernels import GENERATED
from .linears import LINEARS
from .splits import SPLITS

_ALL: tuple[Family, ...] = (GEMM, LINEARS, ATTENTION, CONVOLUTION, DEPTHWISE, SPLITS, *GENERATED)
FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}
