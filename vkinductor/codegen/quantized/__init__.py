"""Weights in GGUF's block formats: their kernels, and the lowerings of the operators of device/quantized.py."""

from .lowering import dequantize, dequantize_rows, quantized_linear

__all__ = ["dequantize", "dequantize_rows", "quantized_linear"]
