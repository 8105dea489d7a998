"""Linear layers that share x, with a norm before and a gate after them, in one kernel: the lowering of
device/fused_linear.py's operator."""

from .lowering import fused_linear

__all__ = ["fused_linear"]
