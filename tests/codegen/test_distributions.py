"""Random numbers whose parameters are tensors: repeatable from a seed, and of the right distribution."""

from __future__ import annotations

import pytest
import torch

DEVICE = "vulkan"
N = 4000


def draw() -> dict[str, torch.Tensor]:
    p = torch.linspace(0, 1, N).to(DEVICE)
    weights = torch.tensor([0.1, 0.0, 0.3, 0.6], device=DEVICE).expand(N, 4)
    made = {
        "bernoulli": torch.bernoulli(p),
        "bernoulli_": torch.empty(N, device=DEVICE).bernoulli_(p),
        "mean": torch.normal(p, 1.0) - p,
        "std": torch.normal(0.0, p + 0.5) / (p + 0.5),
        "both": (torch.normal(p, p + 0.5) - p) / (p + 0.5),
        "one": torch.multinomial(weights, 1),
        "replaced": torch.multinomial(weights, 5, replacement=True),
        "three": torch.multinomial(weights, 3),
        "rrelu": torch.nn.functional.rrelu(-torch.ones(N, device=DEVICE), training=True),
    }
    return {name: value.cpu() for name, value in made.items()}


def test_distributions_and_seeds() -> None:
    torch.manual_seed(4)
    first = draw()
    torch.manual_seed(4)
    again = draw()
    other = draw()
    for name, value in first.items():
        assert torch.equal(value, again[name]), name
        assert not torch.equal(value, other[name]), name
    p = torch.linspace(0, 1, N)
    for name in ("bernoulli", "bernoulli_"):
        assert set(first[name].unique().tolist()) == {0.0, 1.0}
        assert abs(first[name].mean() - 0.5) < 0.03
        assert abs((first[name] * p).mean() - 1 / 3) < 0.03
    for name in ("mean", "std", "both"):
        assert abs(first[name].mean()) < 0.06, name
        assert abs(first[name].std() - 1) < 0.06, name
    for name in ("one", "replaced"):
        shares = torch.bincount(first[name].flatten(), minlength=4) / first[name].numel()
        torch.testing.assert_close(shares, torch.tensor([0.1, 0.0, 0.3, 0.6]), rtol=0, atol=0.03)
        assert shares[1] == 0
    assert (first["three"].sort(1).values == torch.tensor([0, 2, 3])).all()
    assert abs((first["three"][:, 0] == 3).float().mean() - 0.6) < 0.03
    assert first["rrelu"].min() >= -1 / 3
    assert first["rrelu"].max() <= -1 / 8


def test_generators_and_errors() -> None:
    p = torch.rand(50, device=DEVICE)
    drawn = [torch.bernoulli(p, generator=torch.Generator().manual_seed(9)).cpu() for _ in range(2)]
    assert torch.equal(*drawn)
    with pytest.raises(RuntimeError, match="sums to 0"):
        torch.multinomial(torch.zeros(3, device=DEVICE), 1)
    with pytest.raises(RuntimeError, match="replacement"):
        torch.multinomial(p, 51)
    with pytest.raises(RuntimeError, match="std"):
        torch.normal(p, -p - 1)


def test_rrelu_gradient() -> None:
    x = torch.tensor([-1.0, 2.0, -3.0], device=DEVICE, requires_grad=True)
    y = torch.nn.functional.rrelu(x, training=True)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close((x.detach() * x.grad).cpu(), y.detach().cpu())


@pytest.mark.parametrize("rate", [0.3, 9.5, 12.0, 1e6])
def test_poisson(rate: float) -> None:
    x = torch.full((N,), rate)
    torch.manual_seed(3)
    drawn = torch.poisson(x.to(DEVICE)).cpu()
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.poisson(x.to(DEVICE)).cpu())
    assert (drawn == drawn.round()).all()
    assert drawn.min() >= 0
    assert abs((drawn - rate).mean()) < 4 * (rate / N) ** 0.5
    assert abs((drawn - rate).var() / rate - 1) < 0.15


@pytest.mark.parametrize(("count", "p"), [(5, 0.3), (100, 0.05), (100, 0.45), (1000, 0.9)])
def test_binomial(count: int, p: float) -> None:
    drawn = torch.binomial(torch.full((N,), float(count)).to(DEVICE), torch.full((N,), p).to(DEVICE)).cpu()
    assert ((drawn >= 0) & (drawn <= count) & (drawn == drawn.round())).all()
    variance = count * p * (1 - p)
    assert abs(drawn.mean() - count * p) < 4 * (variance / N) ** 0.5
    assert abs(drawn.var() / variance - 1) < 0.15


@pytest.mark.parametrize("shape", [0.2, 1.0, 40.0])
def test_gamma(shape: float) -> None:
    drawn = torch._standard_gamma(torch.full((N,), shape).to(DEVICE)).cpu()
    assert drawn.min() > 0
    assert abs(drawn.mean() - shape) < 4 * (shape / N) ** 0.5
    assert abs(drawn.var() / shape - 1) < 0.4


def test_ends_and_errors_of_counts() -> None:
    x = torch.tensor([0.0, 3.0, 3.0, float("nan")])
    p = torch.tensor([0.5, 0.0, 1.0, 0.5])
    drawn = torch.binomial(x.to(DEVICE), p.to(DEVICE)).cpu()
    torch.testing.assert_close(drawn, torch.tensor([0.0, 0.0, 3.0, float("nan")]), equal_nan=True)
    assert torch.poisson(torch.zeros(3, device=DEVICE)).cpu().tolist() == [0.0] * 3
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.poisson(-torch.ones(1, device=DEVICE))


def test_compiled_draws_differ_and_repeat() -> None:
    f = torch.compile(lambda x: torch.poisson(x) * 2, backend="vulkan", fullgraph=True)
    x = torch.full((N,), 20.0, device=DEVICE)
    torch.manual_seed(5)
    first, second = f(x).cpu(), f(x).cpu()
    torch.manual_seed(5)
    assert torch.equal(first, f(x).cpu())
    assert not torch.equal(first, second)
    assert abs(first.mean() - 40) < 0.6
