"""The problems in PyTorch, for systems that are devices of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .problems import EPSILON, HEADS, LAYERS, MATMUL, WIDTH, Arrays


class Encoder(torch.nn.Module):
    """``problems.encoder_result`` over [1, T, d]."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__()
        for name, value in arrays.items():
            if name != "x":
                self.register_buffer(name.replace(".", "_"), torch.from_numpy(value))

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias"))

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (WIDTH,), getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias"), EPSILON)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in range(LAYERS):
            qkv = self.linear(self.norm(x, f"{layer}_norm1"), f"{layer}_qkv")
            q, k, v = qkv.view(1, -1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            heads = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
            x = x + self.linear(heads, f"{layer}_out")
            x = x + self.linear(F.gelu(self.linear(self.norm(x, f"{layer}_norm2"), f"{layer}_up")), f"{layer}_down")
        return x


def prepare(
    problem: str, arrays: Arrays, compile_: Callable[[Any], Any], synchronize: Callable[[], Any]
) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """A call of ``problem`` on device "vulkan" and how its result is fetched."""
    if problem == MATMUL:
        function, inputs = compile_(torch.matmul), [torch.from_numpy(arrays[n]).to("vulkan") for n in ("x", "y")]
    else:
        function, inputs = compile_(Encoder(arrays).to("vulkan")), [torch.from_numpy(arrays["x"])[None].to("vulkan")]

    def call() -> Any:
        with torch.no_grad():
            result = function(*inputs)
        synchronize()
        return result

    return call, lambda result: result.cpu().numpy()
