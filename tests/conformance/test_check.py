"""Verdicts: what is right, what ran on the CPU, what is wrong or raises, each named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vkinductor.conformance import check as module
from vkinductor.conformance import samples, ties
from vkinductor.conformance.check import VARIANTS, check
from vkinductor.conformance.entry import DTYPES, Sample
from vkinductor.runtime.errors import UnsupportedError


def verdicts(name: str, dtype: torch.dtype = torch.float32, **options) -> dict[str, str]:
    return {variant: v.verdict for variant, v in check(name, dtype, limit=2, **options).items()}


# Entries of every sort: elementwise, a reduction, a matrix product, indexing, several results. CI checks many more by
# the command (groups.FAST).
@pytest.mark.parametrize("name", ["add", "sum", "matmul", "gather", "split"])
def test_kernels_serve_every_variant(name):
    assert verdicts(name) == dict.fromkeys(VARIANTS, "gpu")


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != torch.float32])
def test_dtypes(dtype):
    for name in ("mul", "amin"):
        assert set(verdicts(name, dtype, variants=("eager", "static")).values()) == {"gpu"}


def test_what_runs_on_the_cpu_is_named():
    found = check("linalg.det", torch.float32, ("eager",), 2)["eager"]
    assert found.verdict == "fallback"
    assert "aten._linalg_det" in found.detail
    assert sum(found.fallbacks.values()) >= 2


def substitute(monkeypatch, operator):
    """Let every entry have this operator."""
    original = samples.entry
    monkeypatch.setattr(samples, "entry", lambda name: replace(original(name), operator=operator))


def by_device(on_device):
    return lambda x, *args, **kwargs: on_device(x) if x.device.type == "vulkan" else torch.sin(x)


@pytest.mark.parametrize(
    ("on_device", "verdict", "detail"),
    [
        (lambda x: torch.sin(x) + 0.01, "wrong", "Mismatched elements"),
        (lambda x: torch.sin(x).double(), "wrong", "torch.float64"),
        (lambda x: torch.sin(x)[None], "wrong", "(1, "),
        (lambda x: (torch.sin(x),), "wrong", "another form"),
        (lambda x: 1 / 0, "error", "ZeroDivisionError"),
    ],
)
def test_what_is_not_right_is_told_apart(monkeypatch, on_device, verdict, detail):
    substitute(monkeypatch, by_device(on_device))
    found = check("sin", torch.float32, ("eager",), 2)["eager"]
    assert found.verdict == verdict
    assert detail in found.detail


def test_our_own_refusal_is_not_an_error(monkeypatch):
    def refuse(x):
        try:
            raise UnsupportedError("not here")
        except UnsupportedError as error:
            raise RuntimeError("torch says so") from error

    substitute(monkeypatch, by_device(refuse))
    found = check("sin", torch.float32, ("eager",), 1)["eager"]
    assert (found.verdict, found.detail) == ("unsupported", "UnsupportedError: not here")


def test_what_was_never_compared_is_not_right(monkeypatch):
    def refuse(*args):
        raise RuntimeError("nowhere")

    substitute(monkeypatch, refuse)
    found = check("sin", torch.float32, ("eager",), 2)["eager"]
    assert (found.verdict, found.samples) == ("skipped", 0)


def test_random_results_are_compared_by_form():
    assert verdicts("randn_like", variants=("eager",)) == {"eager": "gpu"}


def test_what_is_as_near_to_the_exact_value_as_the_cpu_is_right():
    exact = torch.tensor([1.0, 2.0, float("nan"), float("inf")], dtype=torch.float64)
    cpu = torch.tensor([1.004, 2.0, float("nan"), float("inf")]).half()
    for off, right in ((0.997, True), (1.004, True), (1.006, False), (float("nan"), False)):
        got = torch.tensor([off, 2.0, float("nan"), float("inf")]).half()
        assert module._as_near(got, cpu, exact) is right
    assert not module._as_near(torch.tensor([1.0, 2.0, 0.0, float("inf")]).half(), cpu, exact)
    assert not module._as_near(torch.tensor([1.0, 2.004, float("nan"), float("inf")]).half(), cpu, exact)


def test_a_result_as_good_as_the_cpus_is_right():
    """In half precision either may be the better one: what is near the exact value counts."""
    near = torch.tensor([1.0 + 2.0**-10], dtype=torch.float16)
    assert not module._far(near, near)
    assert module._far(near + 1, near)


def textbook_variance(x):
    return (x * x).mean(-1) - x.mean(-1) ** 2


def test_what_no_rounding_explains_is_wrong_where_the_cpu_is_off_too(monkeypatch):
    """Rows of values near 30 cancel to nothing but rounding errors; those of values near 0 do not."""
    torch.manual_seed(0)
    x = torch.cat((torch.randn(20, 16) + 30, torch.randn(20, 16))).half()
    substitute(monkeypatch, textbook_variance)
    expected, exact = textbook_variance(x), textbook_variance(x.double())
    theirs = (expected.double() - exact).abs() / exact
    assert theirs[:20].max() > 0.1
    assert theirs[20:].max() < 0.01

    def differs(got):
        return module._differs("sin", got.half(), expected, Sample((x,), {}), False)

    assert not differs(textbook_variance(x.float() * (1 + 2.0**-12)))
    assert not differs(exact)
    for rows, wrong in ((0, 5.0), (0, float("nan")), (25, 0.0), (25, float("inf")), (slice(20, 40), exact[20:] * 1.01)):
        got = exact.clone()
        got[rows] = wrong
        assert "Mismatched" in differs(got)


def test_rounding_within_the_operator_is_no_error():
    """A softmax's gradient reads its rounded result, which no change of the argument accounts for."""
    for dtype in (torch.float16, torch.bfloat16):
        name = "row:executorch-vulkan:aten._softmax"
        assert check(name, dtype, ("backward",), 2)["backward"].verdict == "gpu"


def test_a_jump_is_no_rounding(monkeypatch):
    """floor just below 2 is 1: never an excuse where the CPU has it exactly."""
    substitute(monkeypatch, torch.floor)
    x = torch.arange(1, 9).float()
    assert not module._differs("sin", x, x, Sample((x,), {}), False)
    assert "Mismatched" in module._differs("sin", x - 1, x, Sample((x,), {}), False)


EQUAL = torch.tensor([[2, 1, 1], [5, 5, 4]])


def positions(name, got, *args, **kwargs):
    """What the check says of positions (or of the only result) that differ from the CPU's."""
    result = samples.entry(name).operator(EQUAL, *args, **kwargs)
    expected = list(result) if isinstance(result, tuple) else [result]
    mine = [*expected[:-1], torch.tensor(got)]
    return module._differs(name, mine, expected, Sample((EQUAL, *args), kwargs), False)


def test_the_order_of_equal_values_is_open_where_torch_says_so():
    for name in ("sort", "argsort"):
        for order in ([[1, 2, 0], [2, 0, 1]], [[2, 1, 0], [2, 1, 0]]):
            assert not positions(name, order)
        assert "Mismatched" in positions(name, [[1, 0, 2], [2, 0, 1]])
        assert "twice" in positions(name, [[1, 1, 0], [2, 0, 1]])
        assert "dimension of 3" in positions(name, [[1, 3, 0], [2, 0, 1]])
        stable = positions(name, [[2, 1, 0], [2, 0, 1]], stable=True)
        assert "Mismatched" in stable
    assert not positions("topk", [[0, 2], [1, 0]], 2)
    assert not positions("kthvalue", [2, 1], 2)
    assert "Mismatched" in positions("kthvalue", [0, 2], 2)
    assert not positions("median", [[1], [0]], dim=1, keepdim=True)
    assert not positions("median", [2, 1], dim=1)
    assert "not equal" in positions("median", 1)  # a value, not a position


def test_gradients_of_equal_values_may_change_places():
    def differs(name, got):
        sample = Sample((EQUAL.float().requires_grad_(), 2), {})
        return module._differs(name, [torch.tensor(got)], [torch.tensor([[0.0, 3, 0], [1, 0, 0]])], sample, True)

    assert not differs("kthvalue", [[0.0, 0, 3], [0, 1, 0]])
    assert "Mismatched" in differs("kthvalue", [[3.0, 0, 0], [1, 0, 0]])
    assert "Mismatched" in differs("amax", [[0.0, 0, 3], [0, 1, 0]])
    forward = Sample((EQUAL.float(), 2), {})  # nothing requires a gradient: the results themselves
    values = torch.tensor([1.0, 5.0])
    found = module._differs("kthvalue", [values, torch.tensor([2, 1])], [values, torch.tensor([1, 0])], forward, True)
    assert not found
    assert set(ties.TABLE) <= set(samples.names())


@pytest.mark.parametrize("name", ["sin", "matmul", "row:executorch-vulkan:aten.exp"])
def test_backward_compares_gradients(monkeypatch, name):
    """One that is wrong on the device alone is told, though the results are right."""
    assert any(t.requires_grad for s in samples.samples(name, torch.float32, 2) for t in samples.tensors(s))

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    original = samples.entry(name).operator

    def doubled(*args, **kwargs):
        result = original(*args, **kwargs)
        return Wrong.apply(result) if result.device.type == "vulkan" else result

    monkeypatch.setattr(module, "_function", lambda name, variant: doubled)
    assert check(name, torch.float32, ("backward",), 2)["backward"].verdict == "wrong"
