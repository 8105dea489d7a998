"""Gradients of attention kept whole, by each template."""

from __future__ import annotations

import pytest
import torch
from attention_cases import EMULATED, check_gradients, heads, sdpa, whole
from compiled import compiled, name_of, on_device, same

import vkinductor
from vkinductor.codegen.attention.tiles import BACKWARD_TILES

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name_of)
@pytest.mark.parametrize("tile", range(len(BACKWARD_TILES)))
def test_each_tile(dtype, tile):
    with whole(attention_tile=tile):
        check_gradients(causal, *(heads(1, 2, 70, w, dtype=dtype) for w in (24, 24, 12)))


def test_kernels_and_bits():
    leaves = [x.requires_grad_() for x in on_device([heads(1, 2, 40, 16) for _ in range(3)])]
    with whole():
        out = compiled(causal)(*leaves)
        upstream = torch.ones_like(out)

        def run():
            return torch.autograd.grad(out, leaves, upstream, retain_graph=True)

        first = [g.cpu() for g in run()]
        vkinductor.reset_stats()
        assert all(torch.equal(a, b.cpu()) for _ in range(20) for a, b in zip(first, run(), strict=True))
        # Gradient times result summed, dq, dk with dv.
        assert vkinductor.stats()["dispatches"] == 20 * 3


def test_eager_and_again():
    args = [heads(1, 2, 9, 8) for _ in range(3)]
    with whole():
        check_gradients(causal, *args, run=causal)
        results = []
        for device in ("vulkan", "cpu"):
            leaves = [a.detach().to(device).requires_grad_() for a in args]
            first = torch.autograd.grad(causal(*leaves).sin().sum(), leaves, create_graph=True)
            results.append(torch.autograd.grad(sum(g.cos().sum() for g in first), leaves))
        same(results[0], results[1], atol=1e-5, rtol=1e-4)


def test_dynamic_lengths():
    with whole():
        f = torch.compile(causal, backend="vulkan", dynamic=True)
        for length in (5, 33, 70):
            check_gradients(causal, *(heads(1, 2, length, 16) for _ in range(3)), run=f)
