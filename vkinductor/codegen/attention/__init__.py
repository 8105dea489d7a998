"""Attention kept whole: its lowerings, and the templates and tiles they choose from.

What becomes of `scaled_dot_product_attention` before is `device/attention.py`'s.
"""

from .gradient import backward
from .lowering import forward

__all__ = ["backward", "forward"]
