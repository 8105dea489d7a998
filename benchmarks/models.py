"""Whole models of transformers at batch 32 in float16, forward: BERT-base, ViT-B/16, ResNet-50, random weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .cases import Case


def bert(quick: bool) -> Any:
    """BERT-base."""
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(num_hidden_layers=1 if quick else 12))


def vit(quick: bool) -> Any:
    """ViT-B/16."""
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig(num_hidden_layers=1 if quick else 12))


def resnet(quick: bool) -> Any:
    """ResNet-50."""
    from transformers import ResNetConfig, ResNetModel

    return ResNetModel(ResNetConfig(depths=[1, 1, 1, 1] if quick else [3, 4, 6, 3]))


# Builder, input, FLOPs of one forward of a sample (multiply and add: two).
MODELS: dict[str, tuple[Callable[[bool], Any], Callable[[int], torch.Tensor], float]] = {
    "BERT-base T=128": (bert, lambda n: torch.randint(30000, (n, 128)), 22.3e9),
    "ViT-B/16": (vit, lambda n: torch.randn(n, 3, 224, 224).half(), 35.2e9),
    "ResNet-50": (resnet, lambda n: torch.randn(n, 3, 224, 224).half(), 8.2e9),
}


def cases(quick: bool) -> Iterator[Case]:
    """The whole forward is one case."""
    batch = 1 if quick else 32
    for name, (build, sample, flops) in MODELS.items():
        made: dict[str, Any] = {}

        def function(x: Any, made: dict[str, Any] = made) -> Any:
            return made["model"](x).last_hidden_state

        def inputs(device: str, build: Any = build, sample: Any = sample, made: dict[str, Any] = made) -> list[Any]:
            if "model" not in made:
                made["model"] = build(quick).half().eval().to(device)
            return [sample(batch).to(device)]

        yield Case(
            "models",
            f"{name} batch {batch} float16",
            function,
            inputs,
            0.0,
            flops * batch,
            targets={"CUDA Inductor": 0.45},
        )
