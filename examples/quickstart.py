"""A small network, compiled for Vulkan in both ways: with tensors on the CPU, and with tensors on the device."""

import copy

import torch

import vkinductor

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.LayerNorm(256), torch.nn.Linear(256, 10)
).eval()
x = torch.randn(32, 64)

with torch.no_grad():
    expected = model(x)

    # Model and input on the CPU: weights are mirrored on the device at the first call, results come back.
    fast = torch.compile(model, backend="vulkan")
    print("CPU tensors:    largest difference", (fast(x) - expected).abs().max().item())

    # Everything on the device: nothing is copied at the edges of the graph.
    on_device = torch.compile(copy.deepcopy(model).to("vulkan"), backend="vulkan")
    result = on_device(x.to("vulkan"))
    print("device tensors: largest difference", (result.cpu() - expected).abs().max().item())

    # One program serves many batch sizes.
    many = torch.compile(model, backend="vulkan", dynamic=True)
    for rows in (2, 3, 17, 100):
        batch = torch.randn(rows, 64)
        torch.testing.assert_close(many(batch), model(batch))

stats = vkinductor.stats()
print("device:", vkinductor.device_name())
print("kernels compiled:", stats["kernels_compiled"], " dispatches:", stats["dispatches"])
print("CPU fallbacks:", stats["fallbacks"] or "none")
