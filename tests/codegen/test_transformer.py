"""torch.nn's encoder in evaluation, where torch calls whole layers: the parts run on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiled import compiled, same

import vkinductor

T = 5
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "keys": {"src_key_padding_mask": torch.tensor([[False] * 4 + [True], [False] * 2 + [True] * 3])},
    "pairs": {"src_mask": torch.nn.Transformer.generate_square_subsequent_mask(T)},
}
MASKS["both"] = {**MASKS["keys"], "src_mask": torch.ones(T, T, dtype=torch.bool).triu(1)}


def layer(**options: Any) -> torch.nn.TransformerEncoderLayer:
    torch.manual_seed(1)
    return torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options).eval()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}], ids=["after", "first"])
@torch.no_grad()
def test_layer(mask: str, options: dict[str, Any]) -> None:
    model, x = layer(**options), torch.randn(2, T, 8)
    want = model(x, **MASKS[mask])
    model.to("vulkan")
    got = model(x.to("vulkan"), **{name: value.to("vulkan") for name, value in MASKS[mask].items()})
    same(got, want, rtol=1e-4, atol=1e-5)
    assert not vkinductor.stats()["fallbacks"]


@torch.no_grad()
def test_encoder_with_padding() -> None:
    """No nested tensors, which this device has not."""
    model = torch.nn.TransformerEncoder(layer(), 2).eval()
    x, mask = torch.randn(2, T, 8), MASKS["keys"]["src_key_padding_mask"]
    want = torch.nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False).eval()(x, src_key_padding_mask=mask)
    model.to("vulkan")
    got = model(x.to("vulkan"), src_key_padding_mask=mask.to("vulkan"))
    seen = ~mask
    same(got.cpu()[seen], want[seen], rtol=1e-4, atol=1e-5)
    assert not vkinductor.stats()["fallbacks"]


@torch.no_grad()
def test_compiled_and_attention_alone() -> None:
    model, x = layer(), torch.randn(2, T, 8)
    attention = model.self_attn
    want = model(x), attention(x, x, x), attention(x, x, x, need_weights=False)[0]
    model.to("vulkan")
    x = x.to("vulkan")
    got = compiled(model)(x), attention(x, x, x), attention(x, x, x, need_weights=False)[0]
    same(got, want, rtol=1e-4, atol=1e-5)
    assert not vkinductor.stats()["fallbacks"]
