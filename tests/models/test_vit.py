"""A vision model: transformers' ViTModel with its real structure and random weights."""

from __future__ import annotations

import pytest
import torch
from transformers import ViTConfig, ViTModel

CONFIG = ViTConfig(
    image_size=48,
    patch_size=16,
    num_channels=3,
    hidden_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=192,
    attn_implementation="sdpa",
)


def vit() -> ViTModel:
    torch.manual_seed(0)
    return ViTModel(CONFIG).eval()


def images(count: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    size = CONFIG.image_size
    return {"pixel_values": torch.randn(count, CONFIG.num_channels, size, size, generator=generator)}


@pytest.mark.parametrize("mode", ["cpu tensors", "device tensors"])
@torch.no_grad()
def test_equals_cpu_eager(compare, mode):
    compare(vit(), images(2), mode)
