"""Linear layers that share x, with a norm before and a gate or argmax after them, in one kernel: the lowerings of the
operators of device/fused_linear.py and device/linear_argmax.py."""

from .argmax import linear_argmax
from .lowering import fused_linear

__all__ = ["fused_linear", "linear_argmax"]
