"""Rows of operators.csv: each on the GPU, in float32 and float16, with static and symbolic shapes, without fallback.

Each row in float16 with one of both: what a dtype changes and what symbols change are different parts of a kernel, and
every other row has the other pair.
"""

from __future__ import annotations

import operator

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import vkinductor
from vkinductor.conformance import rows
from vkinductor.conformance.check import check

ROWS = {row.name: row for row in rows.operator_rows()}


def test_every_row_has_an_entry_or_a_reason():
    counted = {len(rows.rows()): 143, len(rows.system_rows()): 7, sum(r.quantized for r in rows.rows()): 25}
    assert all(found == expected for found, expected in counted.items())
    assert len(ROWS) == 143 - 7 - 25 == len(rows.entries())
    kinds = [(r.source, r.namespace) for r in ROWS.values()]
    assert kinds.count(("executorch-vulkan", "aten")) == 77
    assert kinds.count(("executorch-vulkan", "operator")) == 7
    assert sum(source == "torch-vulkan" for source, _ in kinds) == 24 - 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("name", ROWS)
def test_a_row_runs_on_the_gpu(name, dtype):
    calls = rows.cases(ROWS[name])

    def function(arguments):
        return [call.function(*given) for call, given in zip(calls, arguments, strict=True)]

    given = [tree_map(_detached, call.arguments(dtype)) for call in calls]
    expected = function(tree_map(_wide, given) if dtype == torch.float16 else given)
    on_device = tree_map(lambda t: t.to("vulkan") if isinstance(t, torch.Tensor) else t, given)
    position = list(ROWS).index(name)
    for dynamic in (False, True) if dtype == torch.float32 else (position % 2 == 0,):
        torch._dynamo.reset()
        vkinductor.reset_stats()
        got = torch.compile(function, backend="vulkan", dynamic=dynamic)(on_device)
        assert vkinductor.stats()["fallbacks"] == {}
        for a, b in zip(tree_leaves(_host(got)), tree_leaves(_host(expected)), strict=True):
            half = isinstance(a, torch.Tensor) and a.dtype == torch.float16
            limits = {"atol": 4e-3, "rtol": 2e-3} if half else {}
            torch.testing.assert_close(a, b, check_dtype=dtype == torch.float32, **limits)


def _detached(value):
    return value.detach() if isinstance(value, torch.Tensor) else value


def _wide(value):
    """float16 on the CPU may round more than the device does: the reference is computed in float32."""
    is_half = isinstance(value, torch.Tensor) and value.dtype == torch.float16
    return value.float() if is_half else value


def _host(value):
    return tree_map(lambda t: t.cpu() if isinstance(t, torch.Tensor) else t, value)


# Rows about what a system does.


def _system(what: str) -> None:
    assert any(row.operator.startswith(what) for row in rows.system_rows()), f"no row {what!r}"


@pytest.mark.parametrize(
    "call", [torch.linalg.det, torch.logsumexp, lambda x: torch.ops.aten.cholesky_inverse(x @ x.T)]
)
def test_every_operator_runs_with_no_registration(call):
    _system("every operator of torch.ops.aten")
    x = torch.eye(4) + 0.1 * torch.arange(16.0).reshape(4, 4)
    call = (lambda f: lambda x: f(x, 0))(call) if call is torch.logsumexp else call
    for function in (call, torch.compile(call, backend="vulkan")):
        torch.testing.assert_close(function(x.to("vulkan")).cpu(), call(x))


def test_getitem():
    _system("operator.getitem")
    f = torch.compile(
        lambda x: operator.getitem(torch.split(x, 2), 1) + operator.getitem(x, (slice(2), None)), backend="vulkan"
    )
    x = torch.arange(12.0).reshape(4, 3)
    torch.testing.assert_close(torch.compile(f, backend="vulkan")(x), x[2:] + x[:2, None])


def test_half_inputs_with_float_weights():
    _system("mixed precision")
    layer = torch.nn.Linear(8, 4)
    x = torch.randn(3, 8).half()
    with torch.autocast("cpu", torch.float16):
        got = torch.compile(layer, backend="vulkan")(x)
        expected = layer(x)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, atol=2e-3, rtol=2e-3)


def test_symbolic_sizes():
    _system("dynamic shapes (SymInt)")

    def f(x):
        return x.reshape(-1, x.shape[0]) * x.shape[1] + torch.arange(x.shape[0])

    compiled = torch.compile(f, backend="vulkan", dynamic=True)
    for shape in ((3, 4), (5, 2), (1, 7)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), f(x))


def test_tensors_made_in_forward():
    _system("torch.tensor(...) made in forward")

    def f(x):
        return x * torch.tensor([1.0, 2.0, 3.0], device=x.device) + torch.tensor(0.5)

    x = torch.randn(2, 3)
    torch.testing.assert_close(torch.compile(f, backend="vulkan")(x), f(x))
    torch.testing.assert_close(torch.compile(f, backend="vulkan")(x.to("vulkan")).cpu(), f(x))


def test_an_entry_of_a_row_is_checked_like_any_other():
    found = check("row:executorch-vulkan:aten.amax", torch.float32, limit=2)
    assert {variant: verdict.verdict for variant, verdict in found.items()} == dict.fromkeys(found, "gpu")
    assert set(found) == {"eager", "static", "dynamic", "backward"}
