"""Exponentials in kernels whose results are 16 bits: the device's exp2, as exact as those results need."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled, name_of, same

from vkinductor.codegen import heuristics

FAST = "#define HALF_RESULTS"


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
    assert FAST not in code
    same(got, f(x), rtol=2e-3, atol=1e-3)


def test_a_float_operand_keeps_it_exact():
    _, code = run(lambda x, y: torch.exp(x * y).half(), torch.randn(1024).half(), torch.randn(1024))
    assert FAST not in code


def test_cpu_drivers_take_polynomials():
    from vkinductor.runtime import context

    if context.get().info.kind == "cpu":
        from torch._inductor.utils import run_and_get_code

        torch._dynamo.reset()
        _, code = run_and_get_code(compiled(torch.exp), torch.randn(64).half().to("vulkan"))
        assert FAST not in "\n".join(code)
