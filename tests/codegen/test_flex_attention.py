"""FlexAttention: score and mask functions inside the attention kernels, block masks, gradients, what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from attention_cases import TOLERANCES, heads
from compiled import compiled, dispatches, host, on_device, same
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import vkinductor
from vkinductor.codegen import heuristics

BATCH, HEADS, GROUPS, QUERIES, KEYS = 2, 4, 2, 50, 70
DOCUMENTS = torch.randint(0, 3, (KEYS,), generator=torch.Generator().manual_seed(0)).sort().values
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])

SCORES = {
    "causal": lambda s, b, h, i, j: torch.where(i >= j, s, -math.inf),
    "soft cap": lambda s, b, h, i, j: 5 * torch.tanh(s / 5),
    "distance": lambda s, b, h, i, j: s - (i - j).abs() * 0.1 * (h + 1) - 0.01 * b,
}
MASKS = {
    "sliding window": lambda b, h, i, j: (i - j).abs() < 20,
    "prefix": lambda b, h, i, j: (j < 30) | (i >= j),
    "one head sees nothing": lambda b, h, i, j: (h != 1) & (i >= j),
}


@pytest.fixture(autouse=True)
def _small_tile() -> Iterator[None]:
    """What is written for each element of a tile takes a CPU driver long to compile."""
    with heuristics.override(attention_tile=3):
        yield


def reference(q: Any, k: Any, v: Any, score: Any = None, mask: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and the logarithms of sums, in double precision."""
    q, k, v = (x.double() for x in (q, k, v))
    batch, count, queries, width = q.shape
    k, v = (x.repeat_interleave(count // x.shape[1], 1).expand(batch, -1, -1, -1) for x in (k, v))
    s = q @ k.transpose(-1, -2) / math.sqrt(width)
    sizes = (batch, count, queries, k.shape[2])
    places = [torch.arange(n).view([-1 if i == d else 1 for i in range(4)]) for d, n in enumerate(sizes)]
    s = s if score is None else score(s, *places)
    s = s if mask is None else s.masked_fill(~mask(*places), -math.inf)
    return s.softmax(-1).nan_to_num() @ v, s.logsumexp(-1)


def operands(dtype: torch.dtype = torch.float32, width: int = 16, **sizes: int) -> list[torch.Tensor]:
    """q, k and v; two heads of queries share one of keys."""
    batch, queries, keys = (sizes.get(n, d) for n, d in (("batch", BATCH), ("queries", QUERIES), ("keys", KEYS)))
    return [
        heads(BATCH, HEADS, queries, width, dtype=dtype),
        heads(batch, GROUPS, keys, width, dtype=dtype),
        heads(batch, GROUPS, keys, width, dtype=dtype),
    ]


def blocks(mask: Any, size: int = 16, queries: int = QUERIES, keys: int = KEYS, device: str = "vulkan") -> Any:
    """A mask in blocks, the same for every batch."""
    return create_block_mask(mask, None, HEADS, queries, keys, device=device, BLOCK_SIZE=size)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_scores(dtype, name):
    score, args = SCORES[name], operands(dtype)
    f = compiled(lambda q, k, v: flex_attention(q, k, v, score_mod=score, enable_gqa=True))
    same(f(*on_device(args)), reference(*args, score)[0].to(dtype), **TOLERANCES[dtype])
    assert dispatches(f, *on_device(args)) == 1


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("size", [12, 16])
def test_masks(size, name):
    """Blocks that are no multiple of the tile's rows, too: the mask function tells alone then."""
    mask, args = MASKS[name], operands()
    seen = blocks(mask, size)
    f = compiled(lambda q, k, v, seen: flex_attention(q, k, v, block_mask=seen, enable_gqa=True, return_lse=True))
    got, lse = f(*on_device(args), seen)
    want, want_lse = reference(*args, None, mask)
    same((got, lse), (want.float(), want_lse.float()), **TOLERANCES[torch.float32])


def test_a_tile_of_fewer_rows_fits_the_blocks():
    mask, args = MASKS["prefix"], operands()
    f = compiled(lambda q, k, v, seen: flex_attention(q, k, v, block_mask=seen, enable_gqa=True))
    with heuristics.override(attention_tile=0):
        same(f(*on_device(args), blocks(mask)), reference(*args, None, mask)[0].float(), **TOLERANCES[torch.float32])


def test_keys_of_blocks_that_nobody_sees_are_not_read():
    mask, args = MASKS["sliding window"], operands(keys=300)
    want = reference(*args, None, mask)[0].float()
    args[1][:, :, 128:] = args[2][:, :, 128:] = math.nan
    f = compiled(lambda q, k, v, seen: flex_attention(q, k, v, block_mask=seen, enable_gqa=True))
    same(f(*on_device(args), blocks(mask, 32, keys=300)), want, **TOLERANCES[torch.float32])


def test_captured_tensors():
    args = operands(queries=KEYS)
    documents, slopes = on_device([DOCUMENTS, SLOPES])

    def f(q: Any, k: Any, v: Any, documents: Any, slopes: Any, seen: Any) -> Any:
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i), seen, enable_gqa=True)

    seen = blocks(lambda b, h, i, j: documents[i] == documents[j], queries=KEYS)
    want = reference(
        *args, lambda s, b, h, i, j: s + SLOPES[h] * (j - i), lambda b, h, i, j: DOCUMENTS[i] == DOCUMENTS[j]
    )
    run = compiled(f)
    arguments = [*on_device(args), documents, slopes, seen]
    same(run(*arguments), want[0].float(), atol=1e-5, rtol=1e-5)
    assert dispatches(run, *arguments) == 1


def test_tensors_on_the_cpu():
    mask, args = MASKS["prefix"], operands()
    f = compiled(lambda q, k, v, seen: flex_attention(q, k, v, block_mask=seen, enable_gqa=True))
    got = f(*args, blocks(mask, device="cpu"))
    assert got.device.type == "cpu"
    same(got, reference(*args, None, mask)[0].float(), **TOLERANCES[torch.float32])


def test_eager():
    score, args = SCORES["distance"], operands()
    got = flex_attention(*on_device(args), score_mod=score, enable_gqa=True)
    same(got, reference(*args, score)[0].float(), **TOLERANCES[torch.float32])


def test_lengths_vary():
    mask = MASKS["prefix"]

    def f(q: Any, k: Any, v: Any, width: int, seen: Any) -> Any:
        near = flex_attention(q, k, v, lambda s, b, h, i, j: torch.where(i - j < width, s, -math.inf), seen)
        return near.relu()

    run = compiled(f, dynamic=True)
    run(*on_device([heads(1, HEADS, 128, 16)] * 3), 9, blocks(mask, 32, 128, 128))
    vkinductor.reset_stats()
    for n, width in ((127, 5), (130, 20), (200, 7)):
        args = [heads(1, HEADS, n, 16) for _ in range(3)]
        want = reference(*args, lambda s, b, h, i, j, w=width: s.masked_fill(i - j >= w, -math.inf), mask)[0]
        same(run(*on_device(args), width, blocks(mask, 32, n, n)), want.relu().float(), **TOLERANCES[torch.float32])


def test_one_query_at_the_end_of_a_cache():
    position = torch.tensor(40)
    there = position.to("vulkan")
    args = operands(queries=1)
    f = compiled(lambda q, k, v, seen: flex_attention(q, k, v, block_mask=seen, enable_gqa=True))
    got = f(*on_device(args), blocks(lambda b, h, i, j: j <= i + there, 16, 1))
    same(got, reference(*args, None, lambda b, h, i, j: j <= i + position)[0].float(), **TOLERANCES[torch.float32])


@pytest.mark.parametrize("name", [*SCORES, *MASKS])
def test_gradients(name):
    score, mask, args = SCORES.get(name), MASKS.get(name), operands()
    leaves = [x.clone().requires_grad_() for x in args]
    mine = [x.requires_grad_() for x in on_device(args)]
    upstream = torch.randn(BATCH, HEADS, QUERIES, 16)
    want, want_lse = reference(*leaves, score, mask)
    wanted = torch.autograd.grad((want * upstream).sum() + want_lse[:, 0].sum(), leaves)
    seen = None if mask is None else blocks(mask)
    f = compiled(lambda q, k, v, seen: flex_attention(q, k, v, score, seen, enable_gqa=True, return_lse=True))
    with torch.autograd.set_multithreading_enabled(False):
        got, lse = f(*mine, seen)
        made = torch.autograd.grad((got * upstream.to("vulkan")).sum() + lse[:, 0].sum(), mine)
    same(list(made), [x.float() for x in wanted], atol=1e-5, rtol=1e-4)


def test_keys_that_all_batches_share():
    args = operands(batch=1)
    leaves = [x.clone().requires_grad_() for x in args]
    mine = [x.requires_grad_() for x in on_device(args)]
    everything = create_block_mask(lambda b, h, i, j: j >= 0, BATCH, None, QUERIES, KEYS, device="vulkan")
    f = compiled(lambda q, k, v, seen: flex_attention(q, k, v, block_mask=seen, enable_gqa=True))
    wanted = torch.autograd.grad(reference(*leaves)[0].sum(), leaves)
    with torch.autograd.set_multithreading_enabled(False):
        made = torch.autograd.grad(f(*mine, everything).sum(), mine)
    same(list(made), [x.float() for x in wanted], atol=1e-5, rtol=1e-4)


def test_autocast():
    args = operands()
    f = compiled(lambda q, k, v: flex_attention(q, k, v, enable_gqa=True))
    with torch.autocast("vulkan", dtype=torch.float16):
        got = f(*on_device(args))
    assert got.dtype == torch.float16
    same(host(got).float(), reference(*args)[0].float(), atol=5e-3, rtol=5e-3)


LEARNED = torch.zeros(HEADS)


@pytest.mark.parametrize(
    ("score", "options", "message"),
    [
        (None, {"width": 264}, "heads of 264"),
        (None, {"dtype": torch.float64}, "float64"),
        (lambda s, b, h, i, j: s + LEARNED[h], {}, "reads a tensor on cpu"),
        (lambda s, b, h, i, j: s + torch.stack([i, j]).sort().values[0], {}, "pointwise"),
    ],
)
def test_what_is_refused(score, options, message):
    f = compiled(lambda q, k, v: flex_attention(q, k, v, score_mod=score, enable_gqa=True))
    with pytest.raises(vkinductor.UnsupportedError, match=message):
        f(*on_device(operands(**options)))


def test_gradients_of_captured_tensors_are_refused():
    learned = LEARNED.to("vulkan").requires_grad_()
    f = compiled(lambda q, k, v, x: flex_attention(q, k, v, lambda s, b, h, i, j: s + x[h], enable_gqa=True))
    result = f(*(x.requires_grad_() for x in on_device(operands())), learned)
    with pytest.raises(vkinductor.UnsupportedError, match="detach"), torch.autograd.set_multithreading_enabled(False):
        result.sum().backward()
