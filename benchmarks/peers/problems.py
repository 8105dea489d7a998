"""What the peers compute: arrays, and the right answer in double precision. Needs only NumPy, as all of them do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]

MATMUL, ENCODER = "matmul 512x512x512", "encoder, 4 layers, d=256, T=128"
LAYERS, WIDTH, HEADS, INNER, TOKENS = 4, 256, 8, 1024, 128
EPSILON = 1e-5
# Of each of an encoder's layers: name -> shape. Weights lie as nn.Linear has them, [out, in].
SHAPES: dict[str, tuple[int, ...]] = {
    "norm1.weight": (WIDTH,),
    "norm1.bias": (WIDTH,),
    "qkv.weight": (3 * WIDTH, WIDTH),
    "qkv.bias": (3 * WIDTH,),
    "out.weight": (WIDTH, WIDTH),
    "out.bias": (WIDTH,),
    "norm2.weight": (WIDTH,),
    "norm2.bias": (WIDTH,),
    "up.weight": (INNER, WIDTH),
    "up.bias": (INNER,),
    "down.weight": (WIDTH, INNER),
    "down.bias": (WIDTH,),
}


def matmul_arrays(random: np.random.Generator) -> dict[str, Any]:
    """``x`` @ ``y``."""
    return {name: random.standard_normal((512, 512), np.float32) for name in ("x", "y")}


def encoder_arrays(random: np.random.Generator) -> dict[str, Any]:
    """The tokens ``x`` [T, d] and the weights, as "LAYER.NAME"."""
    arrays: dict[str, Any] = {"x": random.standard_normal((TOKENS, WIDTH), np.float32)}
    for layer in range(LAYERS):
        for name, shape in SHAPES.items():
            values = random.standard_normal(shape, np.float32) / math.sqrt(shape[-1])
            arrays[f"{layer}.{name}"] = values + 1 if "norm" in name and "weight" in name else values
    return arrays


def encoder_result(arrays: Arrays) -> Any:
    """Layers that normalise first, with exact GELU."""
    a = {name: value.astype(np.float64) for name, value in arrays.items()}
    x, erf = a["x"], np.vectorize(math.erf)

    def norm(x: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
        return scaled * a[f"{name}.weight"] + a[f"{name}.bias"]

    def linear(x: Any, name: str) -> Any:
        return x @ a[f"{name}.weight"].T + a[f"{name}.bias"]

    for layer in range(LAYERS):
        qkv = linear(norm(x, f"{layer}.norm1"), f"{layer}.qkv")
        q, k, v = qkv.reshape(TOKENS, 3, HEADS, WIDTH // HEADS).transpose(1, 2, 0, 3)
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(WIDTH // HEADS)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        heads = weights / weights.sum(-1, keepdims=True) @ v
        x = x + linear(heads.transpose(1, 0, 2).reshape(TOKENS, WIDTH), f"{layer}.out")
        inner = linear(norm(x, f"{layer}.norm2"), f"{layer}.up")
        x = x + linear(inner * (1 + erf(inner / math.sqrt(2))) / 2, f"{layer}.down")
    return x


# Name -> (its arrays, the right answer).
PROBLEMS: dict[str, tuple[Callable[[np.random.Generator], dict[str, Any]], Callable[[Arrays], Any]]] = {
    MATMUL: (matmul_arrays, lambda a: a["x"].astype(np.float64) @ a["y"].astype(np.float64)),
    ENCODER: (encoder_arrays, encoder_result),
}


def error(result: Any, expected: Any) -> float:
    """The largest difference, of the largest value expected."""
    return float(
        np.abs(np.asarray(result, np.float64).reshape(expected.shape) - expected).max() / np.abs(expected).max()
    )
