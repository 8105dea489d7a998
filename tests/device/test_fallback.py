"""The CPU fallback: what is written comes back, what aliases still does, and every call is counted."""

from __future__ import annotations

import warnings

import pytest
import torch

from vkinductor.device.fallback import VulkanFallbackWarning
from vkinductor.device.registry import registry
from vkinductor.runtime import stats
from vkinductor.runtime.errors import UnsupportedError

DEVICE = "vulkan"


def test_functional() -> None:
    a, b = torch.randn(4, 5), torch.randn(5, 3)
    assert torch.allclose((a.to(DEVICE) @ b.to(DEVICE)).cpu(), a @ b)
    assert torch.equal(torch.cat([a.to(DEVICE), a.to(DEVICE)], 1).cpu(), torch.cat([a, a], 1))
    values, indices = a.to(DEVICE).topk(2)
    assert torch.equal(values.cpu(), a.topk(2)[0])
    assert torch.equal(indices.cpu(), a.topk(2)[1])
    assert torch.equal((a.to(DEVICE) > 0).nonzero().cpu(), (a > 0).nonzero())
    assert torch.equal(a.to(DEVICE), a.to(DEVICE))
    assert [t.shape for t in torch.linalg.svd(a.to(DEVICE))] == [t.shape for t in torch.linalg.svd(a)]


def test_numbers_in_the_place_of_tensors() -> None:
    x, n = torch.tensor([-1.5, 0.0, 5.25]), torch.tensor([7, -3, 4])
    for host, device in ((x, x.to(DEVICE)), (x.double(), x.double().to(DEVICE)), (n, n.to(DEVICE))):
        for number in (2, 2.5, -1.0):
            assert torch.equal(torch.fmod(device, number).cpu(), torch.fmod(host, number))
            assert torch.fmod(device, number).dtype is torch.fmod(host, number).dtype
            assert torch.equal(torch.copysign(device, number).cpu(), torch.copysign(host, number))
    assert torch.equal((n.to(DEVICE) & 3).cpu(), n & 3)


def test_in_place() -> None:
    host = torch.randn(4, 6)
    device = host.to(DEVICE)
    assert device.add_(1) is device
    assert torch.equal(device.cpu(), host + 1)
    device.t()[1:3].mul_(2)
    host.add_(1).t()[1:3].mul_(2)
    assert torch.equal(device.cpu(), host)
    device[device > 0] = 0
    host[host > 0] = 0
    assert torch.equal(device.cpu(), host)
    device.index_add_(0, torch.tensor([0, 0], device=DEVICE), torch.ones(2, 6, device=DEVICE))
    host.index_add_(0, torch.tensor([0, 0]), torch.ones(2, 6))
    assert torch.equal(device.cpu(), host)


def test_out() -> None:
    a = torch.randn(3, 4).to(DEVICE)
    values, indices = torch.empty(0, device=DEVICE), torch.empty(0, dtype=torch.int64, device=DEVICE)
    result = torch.sort(a, out=(values, indices))
    assert result[0] is values
    assert torch.equal(values.cpu(), a.cpu().sort()[0])
    wide = torch.zeros(3, 8, device=DEVICE)
    torch.exp(a, out=wide[:, ::2])
    assert torch.allclose(wide[:, ::2].cpu(), a.cpu().exp())
    assert wide[:, 1::2].sum().item() == 0
    torch.mul(a, a, out=a)
    assert (a.cpu() >= 0).all()
    with pytest.warns(UserWarning, match="resized"):
        torch.exp(a, out=values.resize_(2))
    assert values.shape == a.shape


def test_lists() -> None:
    params = [torch.randn(n).to(DEVICE) for n in (2, 3)]
    expected = [p.cpu() + 2 for p in params]
    torch._foreach_add_(params, 2)
    assert all(torch.equal(p.cpu(), e) for p, e in zip(params, expected, strict=False))
    doubled = torch._foreach_mul(params, 2.0)
    assert all(torch.equal(d.cpu(), e * 2) for d, e in zip(doubled, expected, strict=False))
    scale, found = torch.ones(1, device=DEVICE), torch.zeros(1, device=DEVICE)
    params[0][0] = float("inf")
    torch._amp_foreach_non_finite_check_and_unscale_(params, found, scale)
    assert found.item() == 1


def test_mutated_lists_of_a_fused_operator() -> None:
    params, grads = ([torch.randn(3).to(DEVICE)] for _ in range(2))
    zeros = [[torch.zeros(3, device=DEVICE)] for _ in range(2)]
    steps = [torch.tensor(1.0, device=DEVICE)]
    before = params[0].cpu()
    torch._fused_adamw_(
        params, grads, zeros[0], zeros[1], [], steps, lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8,
        amsgrad=False, maximize=False,
    )  # fmt: skip
    assert not torch.equal(params[0].cpu(), before)
    assert zeros[0][0].cpu().abs().sum() > 0


def test_same_tensor_twice() -> None:
    a = torch.ones(3, device=DEVICE)
    a.add_(a)
    assert a.cpu().tolist() == [2, 2, 2]
    torch.addcmul(a, a, a, out=a)
    assert a.cpu().tolist() == [6, 6, 6]


def test_results_that_alias() -> None:
    library = torch.library.Library("vkinductor_test", "FRAGMENT")
    library.define("look(Tensor(a) x) -> Tensor(a)")
    library.define("keep(Tensor x, Tensor? y, Tensor[] z) -> (Tensor, Tensor[], int)")
    library.impl("look", lambda x: x[1:], "CPU")
    library.impl("keep", lambda x, y, z: (x + 1, [t * 2 for t in z], 7), "CPU")
    base = torch.arange(6.0).to(DEVICE).view(3, 2)
    view = torch.ops.vkinductor_test.look(base)
    view.zero_()
    assert base.cpu().tolist() == [[0, 1], [0, 0], [0, 0]]
    a, b, c = torch.ops.vkinductor_test.keep(base, None, [base, base[0]])
    assert a.is_vulkan
    assert [t.device.type for t in b] == [DEVICE, DEVICE]
    assert c == 7


def test_complex_and_lazy_bits() -> None:
    host = torch.randn(3, 3, dtype=torch.complex64)
    device = host.to(DEVICE)
    assert torch.allclose((device.conj() @ device).cpu(), host.conj() @ host)
    assert torch.allclose((device.conj().imag * 2).cpu(), host.conj().imag * 2)
    assert torch.allclose(torch.fft.fft(device).cpu(), torch.fft.fft(host), atol=1e-5)
    device.conj().mul_(2j)
    host.conj().mul_(2j)
    assert torch.allclose(device.cpu(), host)


def test_counted_and_warned_about_once() -> None:
    a = torch.ones(2, device=DEVICE)
    name = "aten.digamma.out"
    registry.warned.discard(name)
    before = stats.counters.fallbacks.get(name, 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.digamma(a)
        torch.digamma(a)
    ours = [w for w in caught if issubclass(w.category, VulkanFallbackWarning)]
    assert len(ours) == 1
    assert name in str(ours[0].message)
    assert stats.counters.fallbacks[name] == before + 2


def test_no_kernel_anywhere() -> None:
    library = torch.library.Library("vkinductor_test2", "FRAGMENT")
    library.define("nowhere(Tensor x) -> Tensor")
    with pytest.raises(UnsupportedError, match="nowhere"):
        torch.ops.vkinductor_test2.nowhere(torch.ones(2, device=DEVICE))


def test_errors_of_the_operator_pass() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        torch.ones(2, 3, device=DEVICE) @ torch.ones(2, 3, device=DEVICE)
    with pytest.raises(IndexError):
        torch.ones(2, device=DEVICE).sum(3)


def test_sparse_results_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"layout|sparse"):
        torch.eye(3, device=DEVICE).to_sparse()


def test_cpu_autocast_does_not_reach_in() -> None:
    a = torch.randn(4, 4).to(DEVICE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ a).dtype is torch.float32


def test_grad_mode_and_threads() -> None:
    a = torch.randn(3, 3).to(DEVICE)
    with torch.inference_mode():
        assert (a @ a).is_inference()
    with torch.no_grad():
        assert not torch.nn.Parameter(a).mul(2).requires_grad
