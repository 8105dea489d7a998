"""An operator that GLSL has no expression for runs as an eager operator: compiling never fails for it."""

from __future__ import annotations

import pytest
import torch
from compiled import check, compiled, on_device
from torch._inductor.codegen.common import OpOverrides

import vkinductor
from vkinductor.codegen import unsupported
from vkinductor.codegen.ops import GlslOverrides


@pytest.fixture
def without_zeta(monkeypatch):
    monkeypatch.setattr(GlslOverrides, "zeta", OpOverrides._unimplemented("zeta"))
    unsupported.missing.cache_clear()
    yield
    unsupported.missing.cache_clear()


def test_nothing_that_pointwise_operators_need_is_missing():
    assert unsupported.missing() <= {"rand_eager"}


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_lacking_expression_falls_back(without_zeta, dynamic):
    """Other operators around it are still kernels."""
    assert "zeta" in unsupported.missing()

    def f(x, q):
        return torch.special.zeta(x + 1, q * 2).exp()

    vkinductor.reset_stats()
    check(f, torch.rand(3, 5) + 1, torch.rand(3, 5) + 0.1, dynamic=dynamic)
    assert "aten.special_zeta.out" in vkinductor.stats()["fallbacks"]


def test_an_overload_with_a_number_falls_back(without_zeta):
    check(lambda x: torch.special.zeta(x, 2.5) + 1, torch.rand(7) + 1.5)


SPECIAL = [
    ("zeta", 2), ("gammainc", 2), ("gammaincc", 2), ("airy_ai", 1), ("spherical_bessel_j0", 1),
    ("modified_bessel_k0", 1), ("modified_bessel_k1", 1), ("scaled_modified_bessel_k0", 1),
    ("scaled_modified_bessel_k1", 1),
    ("chebyshev_polynomial_t", 2), ("shifted_chebyshev_polynomial_w", 2), ("hermite_polynomial_he", 2),
    ("laguerre_polynomial_l", 2), ("legendre_polynomial_p", 2),
]  # fmt: skip


def special_arguments(dtype):
    return [torch.tensor([1.5, 2.0, 3.25, 7.5], dtype=dtype), torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=dtype)]


# A kernel each: all in one would be minutes of work for a driver's compiler.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "count"), SPECIAL)
def test_special_functions_compile_and_run(name, count, dtype):
    check(getattr(torch.special, name), *special_arguments(dtype)[:count])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("order", range(5))
def test_polygamma_compiles_and_runs(order, dtype):
    check(lambda y: torch.polygamma(order, y), special_arguments(dtype)[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_several_in_one_kernel_and_as_eager_operators(dtype):
    arguments = special_arguments(dtype)

    def f(x, y):
        one = (torch.special.modified_bessel_k0, torch.special.spherical_bessel_j0)
        two = (torch.special.zeta, torch.special.laguerre_polynomial_l)
        return (*(g(x) for g in one), *(g(x, y) for g in two))

    check(f, *arguments)
    vkinductor.reset_stats()
    on = on_device(arguments)
    torch.special.zeta(*on)
    torch.polygamma(2, on[1])
    torch.special.gammainc(*on, out=torch.empty(0, dtype=dtype, device="vulkan"))
    assert not vkinductor.stats()["fallbacks"]


def test_integers_compute_in_float32():
    check(lambda a: (torch.special.zeta(a + 1, a), torch.polygamma(1, a)), torch.tensor([1, 2, 3, 5]))


def test_results_stay_the_same_for_other_devices():
    x = torch.rand(5) + 1
    result = compiled(lambda a: torch.special.zeta(a, 2.0))(x)
    torch.testing.assert_close(result, torch.special.zeta(x, 2.0))
