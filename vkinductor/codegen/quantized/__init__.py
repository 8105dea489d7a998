"""Weights in GGUF's block formats: their kernels, and the lowerings of the operators of device/quantized.py."""
