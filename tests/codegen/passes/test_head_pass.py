"""The passes around a decoder's ends: argmax of a head's results in one launch, rows of a table by the first layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import vkinductor
from vkinductor.codegen import heuristics, passes
from vkinductor.device.quantized import dequantize, dequantize_reference, linear_reference, quantized_linear


@pytest.fixture(autouse=True)
def as_on_a_gpu() -> Iterator[None]:
    with heuristics.override(fused_linears=True):
        yield


def integers(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Products and sums of these are exact in any order."""
    return torch.randint(-3, 4, size).to(dtype)


def replaced(matches: list[passes.Match]) -> list[str]:
    return [match.pattern for match in matches if not match.missed]


def missed(matches: list[passes.Match], pattern: str) -> str:
    return next(match.missed for match in matches if match.pattern == pattern)


def hold(f: Callable[..., Any], *inputs: Tensor, want: Any = None) -> int:
    """What the compiled function gives is what eager on the CPU does; returns the launches of a call."""
    want = f(*inputs) if want is None else want
    call, given = torch.compile(f, backend="vulkan", fullgraph=True), [x.to("vulkan") for x in inputs]
    for _ in range(3):
        vkinductor.reset_stats()
        got = call(*given)
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (got, want)), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-4)
    return vkinductor.stats()["dispatches"]


def norm(x: Tensor, gain: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), gain, 1e-5)


def test_norm_head_and_argmax(matches):
    def f(x: Tensor, gain: Tensor, head: Tensor) -> Tensor:
        return F.linear(norm(x, gain), head)[:, -1].argmax(-1, keepdim=True)

    assert hold(f, torch.randn(2, 1, 64), torch.rand(64), torch.randn(301, 64)) == 1
    assert replaced(matches) == ["RMSNorm + linear", "linear + argmax"]


def test_a_head_alone_widened(matches):
    def f(x: Tensor, head: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x, head, bias).float().argmax(-1)

    x, head, bias = (integers(*size, dtype=torch.float16) for size in ((1, 1, 32), (90, 32), (90,)))
    assert hold(f, x, head, bias) == 1
    assert replaced(matches) == ["linear + argmax"]


def test_logits_that_others_use_are_kept(matches):
    def f(x: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(x, head)
        return logits.argmax(-1), logits

    assert hold(f, integers(3, 32), integers(70, 32)) == 1
    assert replaced(matches) == ["linear + argmax"]


def test_what_is_no_argmax_of_results(matches):
    def f(x: Tensor, head: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = F.linear(x, head)
        return logits.argmax(0), logits.half().argmax(-1), logits.argmax()

    hold(f, integers(3, 32), integers(40, 32))
    assert not replaced(matches)
    assert "along the columns" in missed(matches, "linear + argmax")


def test_more_results_than_one_workgroup_chooses_among(matches):
    def f(x: Tensor, head: Tensor) -> Tensor:
        return F.linear(x, head).argmax(-1)

    assert hold(f, integers(1, 8), integers(65537, 8)) > 1
    assert "more than 65536" in missed(matches, "linear + argmax")


def test_blocks_of_a_head(matches):
    gguf = pytest.importorskip("gguf")
    packed = torch.from_numpy(gguf.quants.quantize(torch.randn(77, 64).numpy(), gguf.GGMLQuantizationType.Q8_0))
    x, gain = torch.randn(2, 64), torch.rand(64)
    want = linear_reference(norm(x, gain), packed, 8).argmax(-1)
    assert hold(lambda x, g, w: quantized_linear(norm(x, g), w, 8).argmax(-1), x, gain, packed, want=want) == 1
    assert "linear + argmax" in replaced(matches)


def layer(x: Tensor, gain: Tensor, q: Tensor, k: Tensor) -> Tensor:
    h = norm(x, gain)
    return x + F.linear(F.linear(h, q) * F.linear(h, k), q)


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_of_a_table(matches, rows):
    def f(tokens: Tensor, table: Tensor, gain: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return layer(F.embedding(tokens, table), gain, q, k)

    def indexed(tokens: Tensor, table: Tensor, gain: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return layer(table[tokens], gain, q, k)

    weights = torch.randn(50, 48), torch.rand(48), torch.randn(48, 48) / 7, torch.randn(48, 48) / 7
    # The first layers, and the last one of their product with what is added to it.
    assert hold(f, torch.randint(50, (rows, 1)), *weights) == 2
    assert hold(indexed, torch.tensor([[-1], [49], [0]])[:rows], *weights) == 2
    assert replaced(matches) == ["RMSNorm + 2 linear", "rows of a table + linear"] * 2


def test_rows_that_something_else_uses_stay(matches):
    def f(tokens: Tensor, table: Tensor, gain: Tensor, q: Tensor, k: Tensor) -> Tensor:
        x = F.embedding(tokens, table)
        return layer(x, gain, q, k) + x.sin()

    hold(f, torch.tensor([[4]]), torch.randn(9, 32), torch.rand(32), torch.randn(32, 32), torch.randn(32, 32))
    assert "uses the rows as well" in missed(matches, "rows of a table + linear")


def test_indices_that_are_checked_stay(matches):
    def f(tokens: Tensor, table: Tensor, gain: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return layer(F.embedding(tokens, table), gain, q, k)

    call = torch.compile(f, backend="vulkan", options={"check_bounds": True})
    given = torch.tensor([[9]]), torch.randn(9, 32), torch.rand(32), torch.randn(32, 32), torch.randn(32, 32)
    with pytest.raises(vkinductor.VulkanError, match="index 9"):
        call(*(x.to("vulkan") for x in given))
    assert missed(matches, "rows of a table + linear") == "indices are checked"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_rows_in_blocks(matches, dtype):
    gguf = pytest.importorskip("gguf")
    packed = torch.from_numpy(gguf.quants.quantize(torch.randn(40, 64).numpy(), gguf.GGMLQuantizationType.Q4_0))
    tokens = torch.tensor([[3, -1, 39]])
    want = dequantize_reference(packed[tokens], 2, dtype)
    assert hold(lambda t, w: dequantize(w[t], 2, dtype), tokens, packed, want=want) == 1
    assert replaced(matches) == ["rows of a table + dequantize"]


def test_explain_names_both():
    def f(tokens: Tensor, table: Tensor, gain: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return F.linear(layer(F.embedding(tokens, table), gain, q, k), table).argmax(-1)

    given = torch.tensor([[4]]), torch.randn(9, 32), torch.rand(32), torch.randn(32, 32), torch.randn(32, 32)
    text = str(vkinductor.explain(f, *(x.to("vulkan") for x in given)))
    assert "rows of a table + linear" in text
    assert "linear + argmax" in text


def test_launches_of_a_decode_step():
    """Five a layer; the table of angles, the next position, and the head with the likeliest token."""
    from benchmarks.llama import Llama, Shape
    from vkinductor.device import attention

    shape, layers = Shape(2, 64, 4, 2, 96, 200, tied=True), 2
    model = Llama(shape, 16)
    given = torch.tensor([[7]]), torch.tensor([3])
    with torch.no_grad(), attention.whole():
        call = torch.compile(model.to("vulkan").decode, backend="vulkan")
        on_device = [x.to("vulkan") for x in given]
        for _ in range(3):
            vkinductor.reset_stats()
            call(*on_device)
    assert vkinductor.stats()["dispatches"] == 5 * layers + 3
