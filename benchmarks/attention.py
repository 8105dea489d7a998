"""Scaled dot product attention: causal prefill with its gradients, and decoding against a long cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from .cases import Case
from .gemm import random


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[batch, heads, T, head]."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[batch, heads, 1, head] against [batch, heads of keys, T, head]."""
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def cases(quick: bool) -> Iterator[Case]:
    """float16; FLOPs of the causal half only."""
    for head in (64, 128):
        for length in (256,) if quick else (1024, 2048, 4096, 8192):
            heads = 2048 // head

            def make(device: str, h: int = heads, t: int = length, d: int = head, grad: bool = False) -> list[Any]:
                return [random(device, torch.float16, 1, h, t, d).requires_grad_(grad) for _ in range(3)]

            def leaves(device: str, m: Any = make) -> list[Any]:
                return m(device, grad=True)

            flops = 2.0 * heads * length * length * head
            nbytes = 4.0 * heads * length * head * 2
            name = f"head {head} T={length} float16"
            yield Case("attention", f"causal {name}", causal, make, nbytes, flops, targets={"CUDA eager": 0.4})
            back = {"CUDA eager": 0.35}
            yield Case(
                "attention", f"backward {name}", causal, leaves, 2 * nbytes, 2.5 * flops, backward=True, targets=back
            )
    for heads, groups, head in ((32, 4, 64), (32, 8, 128)):
        length = 512 if quick else 8192

        def cache(device: str, h: int = heads, g: int = groups, t: int = length, d: int = head) -> list[Any]:
            return [random(device, torch.float16, 8, n, s, d) for n, s in ((h, 1), (g, t), (g, t))]

        nbytes = 2.0 * 8 * groups * length * head * 2
        yield Case(
            "attention",
            f"decode 8 x {heads}/{groups} heads of {head}, T={length} float16",
            decode,
            cache,
            nbytes,
            targets={"ceiling": 0.8},
        )
