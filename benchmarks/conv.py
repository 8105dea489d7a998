"""The convolutions of ResNet-50 and depthwise ones, float16 in channels-last, batch 32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from .cases import Case
from .gemm import random

# Input channels, output channels, image, kernel, stride, groups.
RESNET50 = (
    (3, 64, 224, 7, 2, 1),
    (64, 64, 56, 1, 1, 1),
    (64, 64, 56, 3, 1, 1),
    (256, 64, 56, 1, 1, 1),
    (128, 128, 56, 3, 2, 1),
    (128, 128, 28, 3, 1, 1),
    (512, 128, 28, 1, 1, 1),
    (256, 256, 14, 3, 1, 1),
    (1024, 256, 14, 1, 1, 1),
    (512, 512, 7, 3, 1, 1),
    (2048, 512, 7, 1, 1, 1),
)
DEPTHWISE = ((32, 32, 112, 3, 1, 32), (144, 144, 56, 3, 1, 144), (384, 384, 14, 7, 1, 384), (960, 960, 7, 3, 1, 960))


def cases(quick: bool) -> Iterator[Case]:
    """cuDNN's are CUDA eager's."""
    batch = 1 if quick else 32
    for ins, outs, image, kernel, stride, groups in RESNET50[1:3] if quick else (*RESNET50, *DEPTHWISE):

        def make(device: str, i: int = ins, o: int = outs, n: int = image, k: int = kernel, g: int = groups) -> Any:
            x = random(device, torch.float16, batch, i, n, n).to(memory_format=torch.channels_last)
            return x, random(device, torch.float16, o, i // g, k, k).to(memory_format=torch.channels_last)

        def function(x: Any, w: Any, s: int = stride, k: int = kernel, g: int = groups) -> Any:
            return F.conv2d(x, w, stride=s, padding=k // 2, groups=g)

        out = image // stride
        weight = outs * ins // groups * kernel * kernel
        nbytes = 2.0 * (batch * ins * image * image + batch * outs * out * out + weight)
        flops = 2.0 * batch * out * out * weight
        goal = 0.8 if groups > 1 else 0.4
        kind = "depthwise" if groups > 1 else "conv"
        label = f"{kind} {ins}->{outs} {image}x{image} kernel {kernel} stride {stride}"
        yield Case("conv", label, function, make, nbytes, flops, targets={"CUDA eager": goal})
