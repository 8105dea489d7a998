"""A classifier learns two interleaved spirals on the device: compiled forward and backward, AdamW steps."""

import math

import torch

import vkinductor

STEPS, POINTS = 200, 256


def spirals(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points (count, 2) on two spirals, and which of the two each lies on (count,)."""
    turn = torch.rand(count).sqrt() * 3 * math.pi
    label = torch.randint(0, 2, (count,))
    angle = turn + label * math.pi
    points = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1) / (3 * math.pi)
    return points + 0.01 * torch.randn(count, 2), label


torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)
).to("vulkan")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


@torch.compile(backend="vulkan", fullgraph=True)
def loss_of(points: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(points), labels)


for step in range(STEPS):
    points, labels = (tensor.to("vulkan") for tensor in spirals(POINTS))
    optimizer.zero_grad()
    loss = loss_of(points, labels)
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or step == STEPS - 1:
        print(f"step {step:3}: loss {loss.item():.4f}", flush=True)

points, labels = spirals(1000)
with torch.no_grad():
    right = (model(points.to("vulkan")).argmax(1).cpu() == labels).float().mean().item()
print(f"{right:.1%} of new points are right, on {vkinductor.device_name()}")
