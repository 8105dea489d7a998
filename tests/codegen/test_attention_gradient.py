"""Gradients of attention kept whole, by each template."""

from __future__ import annotations

import pytest
import torch
from attention_cases import EMULATED, check_gradients, heads, sdpa, whole
from compiled import compiled, on_device

import vkinductor
from vkinductor.codegen.attention.tiles import BACKWARD_TILES
from vkinductor.device import attention
from vkinductor.templates import render_text

TEMPLATES = pytest.mark.parametrize("forced", [{}, {"attention_workgroup_backward": EMULATED}], ids=["fma", "matrices"])


def causal(q, k, v):
    return sdpa(q, k, v, is_causal=True)


@TEMPLATES
@pytest.mark.parametrize("sizes", [(37, 50), (50, 37), (16, 16), (1, 3)], ids=str)
def test_causal(forced, sizes):
    queries, keys = sizes
    with whole(**forced):
        check_gradients(causal, *(heads(2, 2, n, 20, dtype=torch.float16) for n in (queries, keys, keys)))


@TEMPLATES
def test_grouped_queries_and_masks(forced):
    q, k, v = (heads(2, n, m, 16, dtype=torch.float16) for n, m in ((4, 20), (2, 35), (2, 35)))
    seen = torch.rand(2, 1, 20, 35) > 0.4
    seen[0, :, 3] = False
    with whole(**forced):
        check_gradients(sdpa, q, k, v)
        check_gradients(sdpa, q, k, v, seen)
        check_gradients(sdpa, q, k, v, torch.randn(4, 1, 35).half())


@pytest.mark.parametrize(("tile", "dtype"), enumerate([torch.float32, torch.bfloat16, torch.float32, torch.bfloat16]))
def test_each_tile(tile, dtype):
    assert len(BACKWARD_TILES) == 4
    with whole(attention_tile=tile):
        check_gradients(causal, *(heads(1, 2, 70, w, dtype=dtype) for w in (24, 24, 12)))


def test_bfloat16_is_rounded_to_nearest():
    """Of 48 weights of a third each that were cut to 8 bits the sum is 15.94."""
    q, k, v = (torch.zeros(1, n, length, 16, dtype=torch.bfloat16) for n, length in ((3, 16), (1, 3), (1, 3)))
    with whole(attention_workgroup_backward=EMULATED):
        leaves = [x.requires_grad_() for x in on_device([q, k, v])]
        out = compiled(lambda *x: sdpa(*x).contiguous())(*leaves)
        gradient = torch.autograd.grad(out, leaves[2], torch.ones_like(out))[0]
    assert gradient.unique().tolist() == [16.0]


@pytest.mark.parametrize("element", ["bfloat16_t", "float16_t"])
def test_drivers_convert_what_is_rounded(element):
    """NVIDIA's (580) cuts bits off where it converts to bfloat16."""
    text = '{% import "attention_matrices.jinja" as t %}{{ t.operand(false, "A", "P", 16, 16, element) }}'
    text += '{{ t.store(false, "X", 16, 16, "x", "layout_x", (), (), "0", 0, element) }}'
    text = render_text(text, "{}", element=element)
    rounds = element == "bfloat16_t"
    assert ("coopMatPerElementNV(Anear, P, attention_operand)" in text) == rounds
    assert ("gl_MatrixUseA>(Anear)" in text) == rounds
    assert (0 <= text.find("coopMatPerElementNV(X, X, attention_result)") < text.find("coopMatStore")) == rounds


def test_kernels_and_bits():
    leaves = [x.requires_grad_() for x in on_device([heads(1, 2, 40, 16) for _ in range(3)])]
    with whole():
        # Contiguous, as torch 2.11 wants gradients of results: others it copies first.
        out = compiled(lambda *x: causal(*x).contiguous())(*leaves)
        upstream = torch.ones_like(out)

        def run():
            return torch.autograd.grad(out, leaves, upstream, retain_graph=True)

        first = [g.cpu() for g in run()]
        vkinductor.reset_stats()
        assert all(torch.equal(a, b.cpu()) for _ in range(20) for a, b in zip(first, run(), strict=True))
        # Gradient times result summed, dq, dk with dv.
        assert vkinductor.stats()["dispatches"] == 20 * 3


def test_eager():
    with whole():
        check_gradients(causal, *(heads(1, 2, 9, 8) for _ in range(3)), run=causal)


@pytest.mark.parametrize("masked", [False, True])
def test_formulas_of_first_and_second_derivatives(masked):
    q, k, v = (torch.randn(1, n, 3, 2, dtype=torch.float64, requires_grad=True) for n in (2, 1, 1))
    mask = torch.rand(1, 1, 3, 3) > 0.4 if masked else None

    def f(q, k, v):
        return attention.attention(q, k, v, mask, not masked, 0.6)[0]

    assert torch.autograd.gradcheck(f, (q, k, v))
    assert torch.autograd.gradgradcheck(f, (q, k, v))


def test_dynamic_lengths():
    with whole():
        f = torch.compile(causal, backend="vulkan", dynamic=True)
        for length in (5, 33, 70):
            check_gradients(causal, *(heads(1, 2, length, 16) for _ in range(3)), run=f)
