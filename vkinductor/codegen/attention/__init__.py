"""Attention kept whole: its lowerings, and the templates and tiles they choose from.

What becomes of `scaled_dot_product_attention` before is `device/attention.py`'s.
"""

from .gradient import backward
from .lowering import forward
from .step import attention_step

__all__ = ["attention_step", "backward", "forward"]
