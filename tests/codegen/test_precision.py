"""Exponentials in kernels whose results are 16 bits: the device's exp2, as exact as those results need."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled, name_of, same

from vkinductor.codegen import heuristics

FAST, POWERS = "#define HALF_RESULTS", "#define HALF_POWERS"


def run(f, *args):
    """Results with the device's exp2, and the code."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    with heuristics.override(device_exp2=True):
        result, code = run_and_get_code(compiled(f), *[a.to("vulkan") for a in args])
    return result, "\n".join(code)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
def test_halves_to_halves(dtype):
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 11.0, -9.5, -17.0])
    x = torch.cat([torch.linspace(-20, 20, 4088), special]).to(dtype)
    for f in (torch.exp, F.silu, torch.sigmoid, lambda x: F.softmax(x[:4088].view(8, 511), -1)):
        got, code = run(f, x)
        assert FAST in code
        same(got, f(x), rtol=2 * torch.finfo(dtype).eps, atol=1e-7 if dtype == torch.float16 else 1e-37)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
def test_quotients_of_halves(dtype):
    """By the reciprocal, also of the largest numbers."""
    largest = torch.finfo(dtype).max
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, largest, -largest, 1.0, 3.0])
    x, y = (t.flatten() for t in torch.meshgrid(special, special, indexing="ij"))
    x, y = (torch.cat([a, b]).to(dtype) for a, b in ((x, torch.randn(4096) * 40), (y, torch.randn(4096))))
    got, code = run(torch.div, x, y)
    assert FAST in code
    same(got, (x.double() / y.double()).to(dtype), rtol=0 if dtype == torch.bfloat16 else 1e-3, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
def test_error_functions_of_halves(dtype):
    """A ratio for erf, a power of two for GELU, which cancels nothing far below zero."""
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-5, -3.84, 3.9])
    x = torch.cat([torch.linspace(-9, 9, 4088), special]).to(dtype)
    for f, atol in ((torch.erf, 1e-7), (F.gelu, 1e-7), (_written_out, 1e-7)):
        got, code = run(f, x)
        assert FAST in code
        assert ("vk_gelu" in code) == (f is not torch.erf)
        same(got, f(x.double()).to(dtype), rtol=1.2 * torch.finfo(dtype).eps, atol=atol)
    number = ~x.isnan()
    assert torch.equal(run(torch.erf, x)[0].cpu().signbit()[number], x.signbit()[number])


def _written_out(x):
    wide = x if x.dtype == torch.float64 else x.float()
    return ((1 + torch.erf(wide * 0.5**0.5)) * (0.5 * wide)).to(x.dtype)


def test_epilogues_of_products():
    a, b = (torch.randn(24, 24).half() for _ in range(2))
    for f, fast in ((lambda a, b: F.gelu(a @ b), True), (lambda a, b: F.gelu((a @ b).float()), False)):
        got, code = run(f, a, b)
        assert (FAST in code) == fast
        same(got, f(a.double(), b.double()).to(got.dtype), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.exp(x.float()),
        lambda x: torch.exp(x) > 0.5,
        lambda x: torch.exp(x.float() * 2).sum(),
        lambda x: (torch.exp(x), x.double().exp()),
    ],
)
def test_what_others_see_is_exact(f):
    x = torch.randn(1024).half()
    got, code = run(f, x)
    assert POWERS not in code
    same(got, f(x), rtol=2e-3, atol=1e-3)


def test_a_float_operand_leaves_powers_to_the_device():
    """They are off as an argument is that was rounded once or twice; other functions are not."""
    x, y = torch.randn(8, 512) * 9, torch.randn(8, 1)
    for dtype in (torch.float16, torch.bfloat16):
        got, code = run(lambda x, y, dtype=dtype: torch.exp(x - y).to(dtype), x, y)
        assert FAST not in code
        assert POWERS in code
        same(got, torch.exp(x.double() - y.double()).to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-7)


def test_doubles_keep_powers_exact():
    _, code = run(lambda x, y: torch.exp(x * y).half(), torch.randn(1024).half(), torch.randn(1024).double())
    assert POWERS not in code


def test_cpu_drivers_take_polynomials():
    from vkinductor.runtime import context

    if context.get().info.kind == "cpu":
        from torch._inductor.utils import run_and_get_code

        torch._dynamo.reset()
        _, code = run_and_get_code(compiled(torch.exp), torch.randn(64).half().to("vulkan"))
        assert FAST not in "\n".join(code)
