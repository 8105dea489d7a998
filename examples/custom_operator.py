"""Two operators of your own on the device: one in GLSL with a gradient, one in other torch operators."""

import torch

import vkinductor

# One element of the result, in GLSL. {{ x }} is the element of x at the result's place; {{ beta }} a number.
swish = vkinductor.register_kernel(
    "examples::swish(Tensor x, float beta=1.0) -> Tensor",
    "value = {{ x }} / (1.0 + exp(-{{ beta }} * {{ x }}));",
    dtypes={"x": [torch.float32, torch.float16, torch.bfloat16]},
    reference=lambda x, beta=1.0: x * torch.sigmoid(beta * x),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0], output, torch.tensor(inputs[1])),
    backward=lambda ctx, gradient: (swish_gradient(gradient, *ctx.saved_tensors), None),
)


def swish_gradient(gradient: torch.Tensor, x: torch.Tensor, y: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """d/dx x * s(beta x) = s(beta x) + beta y (1 - s(beta x))."""
    s = torch.sigmoid(beta * x)
    return gradient * (s + beta * y * (1 - s))


@torch.library.custom_op("examples::softclip", mutates_args=())
def softclip(x: torch.Tensor, limit: float) -> torch.Tensor:
    """An operator that some other package declares, with a kernel for the CPU."""
    return limit * torch.tanh(x / limit)


@softclip.register_fake
def _(x: torch.Tensor, limit: float) -> torch.Tensor:
    return torch.empty_like(x)


vkinductor.register_lowering(softclip, lambda x, limit: limit * torch.tanh(x / limit))

torch.manual_seed(0)
x = torch.randn(1000)

# Eager, on the device.
assert torch.allclose(swish(x.to("vulkan"), 2.0).cpu(), swish(x, 2.0), atol=1e-6)


def f(x: torch.Tensor) -> torch.Tensor:
    return swish(x, 2.0) * 3 + 1


# Compiled: what follows is computed in the same kernel.
fast = torch.compile(f, backend="vulkan", options={"fallback": "error"})
print("largest difference:", (fast(x) - f(x)).abs().max().item())
print(vkinductor.explain(f, x))

# Differentiated.
x.requires_grad_()
fast(x).sum().backward()
print("gradient:", x.grad[:3].tolist())

# In other torch operators: fused with all around it.
found = vkinductor.explain(lambda x: softclip(x * 2, 1.5) + 1, x.detach())
print("softclip and its neighbours:", found.launches, "launch,", ", ".join(found.kernels[0].operators))
