"""Networks of convolutions as a GPU gets them: channels last from the first to the last, a kernel each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled, dispatches, on_device, same
from torch import nn

from vkinductor.codegen import heuristics
from vkinductor.codegen.gemm.choose import forced
from vkinductor.codegen.gemm.cooperative import SubgroupTile

TILE = SubgroupTile(16, 32, 16, 16, 16, (8, 8, 8), emulated=8)


@pytest.fixture(autouse=True)
def products() -> Iterator[None]:
    with heuristics.override(convolution_products=1), forced(TILE):
        yield


class Bottleneck(nn.Module):
    """ResNet's: 1x1, 3x3, 1x1, with a shortcut that is a convolution where sizes change."""

    def __init__(self, channels: int, middle: int, stride: int) -> None:
        super().__init__()
        out = 2 * middle
        self.first = nn.Sequential(nn.Conv2d(channels, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU())
        window = nn.Conv2d(middle, middle, 3, stride, 1, bias=False)
        self.second = nn.Sequential(window, nn.BatchNorm2d(middle), nn.ReLU())
        self.third = nn.Sequential(nn.Conv2d(middle, out, 1, bias=False), nn.BatchNorm2d(out))
        changes = stride > 1 or channels != out
        shortcut = nn.Conv2d(channels, out, 1, stride, bias=False)
        self.shortcut = nn.Sequential(shortcut, nn.BatchNorm2d(out)) if changes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.third(self.second(self.first(x))) + self.shortcut(x))


def network(*layers: nn.Module) -> nn.Module:
    model = nn.Sequential(*layers).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.normal_(module.running_mean, std=0.1)
    return model


def kernels(model: nn.Module, x: torch.Tensor) -> int:
    """Of one call, whose result is compared with the model's in double precision."""
    with torch.no_grad():
        want = model.double()(x.double()).half()
        on = model.half().to("vulkan")
        g = compiled(on)
        (moved,) = on_device([x.half()])
        same(g(moved), want, rtol=1e-2, atol=1e-2)
        return dispatches(g, moved)


@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_bottlenecks(last: bool) -> None:
    """A kernel a convolution, a pool and a batch norm (a small one), one a weight of 3x3 to be laid out."""
    model = network(
        nn.MaxPool2d(3, 2, 1), Bottleneck(16, 16, 1), Bottleneck(32, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    x = torch.randn(1, 16, 14, 14)
    windows = 2
    if last:
        x = x.to(memory_format=torch.channels_last)
        model = model.to(memory_format=torch.channels_last)
        windows = 0
    norms = 2 * 3  # the two that meet in a sum share one
    assert kernels(model, x) == 1 + 4 + 4 + 1 + norms + windows


def test_depthwise_between_products() -> None:
    """MobileNet's block: the depthwise kernel reads and writes channels last, with what follows."""
    layers = [
        nn.Conv2d(16, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6(),
        nn.Conv2d(32, 32, 3, 2, 1, groups=32, bias=False), nn.BatchNorm2d(32), nn.ReLU6(),
        nn.Conv2d(32, 16, 1),
    ]  # fmt: skip
    x = torch.randn(2, 16, 9, 7).to(memory_format=torch.channels_last)
    norms = 2
    assert kernels(network(*layers), x) == 3 + norms
