"""Attention kept whole, forward: each template against the CPU, and what keeps torch's composition."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from attention_cases import EMULATED, LAZY, check, heads, sdpa, whole
from compiled import compiled, dispatches, on_device, same

import vkinductor
from vkinductor.codegen.attention.tiles import FMA_TILES, WorkgroupTile
from vkinductor.device import attention
from vkinductor.runtime.deviceinfo import CooperativeShape, DeviceInfo, Features, Limits

TEMPLATES = pytest.mark.parametrize("forced", [{}, {"attention_workgroup": EMULATED}], ids=["fma", "matrices"])


def causal(q, k, v):
    return sdpa(q, k, v, is_causal=True)


@TEMPLATES
@pytest.mark.parametrize("sizes", [(37, 70), (70, 37), (1, 1)])
def test_causal_masks_by_the_upper_left_corner(forced, sizes):
    queries, keys = sizes
    with whole(attention_decode=False, **forced):
        check(causal, *(heads(2, 3, n, 20, dtype=torch.float16) for n in (queries, keys, keys)))


@TEMPLATES
@pytest.mark.parametrize("widths", [(20, 9), (64, 40), (32, 48)], ids=str)
def test_widths_of_heads(forced, widths):
    width, width_v = widths
    with whole(**forced):
        q, k, v = (heads(1, 2, n, w, dtype=torch.float16) for n, w in ((35, width), (50, width), (50, width_v)))
        check(sdpa, q, k, v)


def test_the_widest_heads():
    with whole():
        check(sdpa, *(heads(1, 1, 20, 256) for _ in range(3)))
        assert dispatches(compiled(sdpa), *on_device([heads(1, 1, 20, 200) for _ in range(3)])) == 1


@pytest.mark.parametrize(("tile", "dtype"), enumerate([torch.float32, torch.bfloat16, torch.float16, torch.float32]))
def test_each_tile(tile, dtype):
    with whole(attention_tile=tile):
        check(causal, *(heads(1, 2, 75, 24, dtype=dtype) for _ in range(3)))


def test_lengths_from_1_to_130():
    """llama.cpp#21888."""
    with whole():
        f = compiled(causal, dynamic=True)
        for length in range(1, 131):
            q, k, v = (heads(1, 2, length, 16) for _ in range(3))
            want = causal(q.double(), k.double(), v.double()).float()
            same(f(*on_device([q, k, v])), want, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("growth", [40.0, -40.0])
def test_maxima_that_grow(growth):
    """Scores that rise over the keys, or fall: what is summed follows late, or at once."""
    q, k, v = (heads(1, 2, 50, 16, dtype=torch.float16) for _ in range(3))
    q, k[..., 0] = q.abs(), torch.linspace(0, growth, 50).half()
    with whole(attention_workgroup=LAZY):
        check(causal, q, k, v)


@TEMPLATES
def test_masks(forced):
    q, k, v = heads(2, 4, 37, 16, dtype=torch.float16), *(heads(2, 2, 40, 16, dtype=torch.float16) for _ in range(2))
    seen = torch.rand(2, 1, 37, 40) > 0.4
    seen[0, :, 3] = False  # a row that sees nothing
    with whole(**forced):
        result = check(sdpa, q, k, v, seen)
        assert (result[0, :, 3] == 0).all()
        check(sdpa, q, k, v, torch.randn(4, 1, 40).half())
        check(sdpa, q, k, v, torch.randn(2, 1, 1, 40).half() * 3)
        lowest = torch.where(seen, 0.0, torch.finfo(torch.float16).min).half()
        check(sdpa, q, k, v, lowest)


def test_masks_are_not_expanded():
    q, k, v = (heads(2, 4, 40, 16) for _ in range(3))
    with whole():
        mask = (torch.rand(2, 1, 1, 40) > 0.3).expand(2, 4, 40, 40)
        assert dispatches(compiled(sdpa), *on_device([q, k, v, mask])) == 1


def test_scales():
    q, k, v = (heads(1, 2, 20, 16, dtype=torch.float16) for _ in range(3))
    for scale in (0.7, 0.0, -0.4):
        want = torch.softmax(q.double() @ k.double().mT * scale, -1) @ v.double()
        for forced in ({}, {"attention_workgroup": EMULATED}):
            with whole(**forced):
                got = compiled(lambda q, k, v, s=scale: sdpa(q, k, v, scale=s))(*on_device([q, k, v]))
            same(got, want.half(), atol=2e-3, rtol=2e-3)


@TEMPLATES
def test_any_strides_and_no_copies(forced):
    packed = torch.randn(2, 30, 3, 4, 16).half()

    def of_packed(x):
        q, k, v = x.permute(2, 0, 3, 1, 4).unbind(0)
        return sdpa(q, k, v, is_causal=True)

    def of_columns(q, k, v):
        return sdpa(q.mT, k.mT, v.mT)

    with whole(**forced):
        check(of_packed, packed)
        assert dispatches(compiled(of_packed), *on_device([packed])) == 1
        columns = [torch.randn(1, 2, 16, n).half() for n in (20, 24, 24)]
        check(of_columns, *columns)
        assert dispatches(compiled(of_columns), *on_device(columns)) == 1


def test_matrices_of_a_workgroup_need_heads_in_memory():
    """Another last stride of a tensor's layout than 1 gave wrong values (NVIDIA's driver 580): such operands take
    another template. A driver without such matrices runs what does not ask for them."""
    with whole(attention_workgroup=WorkgroupTile(64, 64, 128)):
        columns = [torch.randn(1, 2, 16, n).half() for n in (20, 24, 24)]
        check(lambda q, k, v: sdpa(q.mT, k.mT, v.mT), *columns)


@TEMPLATES
def test_grouped_queries_share_keys_without_copies(forced):
    q, k, v = (heads(2, n, 30, 16, dtype=torch.float16) for n in (6, 2, 2))
    with whole(**forced):
        check(causal, q, k, v)
        assert dispatches(compiled(causal), *on_device([q, k, v])) == 1


def test_the_result_lies_as_torch_lays_it_and_takes_an_epilogue():
    q, k, v = (heads(2, 3, 20, 16) for _ in range(3))

    def f(q, k, v):
        return sdpa(q, k, v).transpose(1, 2).reshape(2, 20, 48) * 2 + 1

    with whole():
        assert check(sdpa, q, k, v).stride() == (960, 16, 48, 1)
        check(f, q, k, v)


def test_nan_and_infinity():
    q, k, v = (heads(1, 1, 20, 16) for _ in range(3))
    q[0, 0, 3, 5] = float("nan")
    k[0, 0, 7, 2] = float("inf")
    v[0, 0, 4, 1] = float("nan")
    with whole():
        check(sdpa, q, k, v)


@TEMPLATES
def test_the_same_bits_each_time(forced):
    q, k, v = on_device([heads(1, 2, 50, 32, dtype=torch.float16) for _ in range(3)])
    with whole(**forced):
        f = compiled(causal)
        first = f(q, k, v).cpu()
        assert all(torch.equal(f(q, k, v).cpu(), first) for _ in range(100))


def test_eager_and_three_dimensions():
    for shapes in (((2, 3, 20, 16),) * 3, ((5, 20, 16), (5, 24, 16), (5, 24, 8))):
        q, k, v = (torch.randn(s) for s in shapes)
        want = F.scaled_dot_product_attention(q, k, v)
        with whole():
            vkinductor.reset_stats()
            got = F.scaled_dot_product_attention(*on_device([q, k, v]))
            assert vkinductor.stats()["dispatches"] == 1
            assert not vkinductor.stats()["fallbacks"]
        same(got, want)
    mask = torch.rand(5, 20, 24) > 0.5
    with whole():
        same(
            F.scaled_dot_product_attention(*on_device([q, k, v, mask])),
            F.scaled_dot_product_attention(q, k, v, mask),
        )


def test_without_this_backend_named():
    q, k, v = on_device([heads(1, 2, 20, 16) for _ in range(3)])
    with whole():
        f = torch.compile(causal, fullgraph=True)
        assert dispatches(f, q, k, v) == 1
        same(f(q, k, v), causal(q.cpu(), k.cpu(), v.cpu()))


def test_other_calls_stay_composed():
    """Dropout, a mask that is differentiated, double precision: right, without an operator of ours."""
    q, k, v = (heads(2, 2, 12, 8) for _ in range(3))
    device = on_device([q, k, v])
    bias = torch.randn(12, 12)
    with whole():
        assert sdpa(*device, dropout_p=0.5).shape == q.shape
        ours = bias.to("vulkan").requires_grad_()
        sdpa(*device, ours).sum().backward()
        theirs = bias.clone().requires_grad_()
        sdpa(q, k, v, theirs).sum().backward()
        same(ours.grad, theirs.grad)
        same(sdpa(*on_device([x.double() for x in (q, k, v)])), sdpa(q.double(), k.double(), v.double()))
        with pytest.raises(RuntimeError):
            sdpa(*device, torch.ones(12, 12, dtype=torch.bool, device="vulkan"), is_causal=True)


def test_transforms_see_torch_composition():
    x = heads(1, 1, 4, 8).to("vulkan")
    served = []

    def f(x):
        served.append(attention.is_served(x, x, x, None, 0.0, True, False))
        return x.sum()

    with whole():
        f(x)
        torch.func.grad(f)(x)
        torch.func.jvp(f, (x,), (x,))
        assert served == [True, False, False]
        q, k, v = (heads(2, 1, 2, 6, 8) for _ in range(3))
        same(torch.vmap(causal)(*on_device([q, k, v])), torch.vmap(causal)(q, k, v))


def test_a_cache_written_in_place_is_read_anew():
    """llama.cpp#26744."""

    def step(q, k, v, keys, values, place):
        keys.index_copy_(2, place, k)
        values.index_copy_(2, place, v)
        seen = torch.arange(keys.shape[2], device=q.device) <= place
        return sdpa(q, keys, values, seen[None, None, None])

    with whole():
        f = compiled(step)
        caches = [torch.zeros(1, 2, 40, 16) for _ in range(2)]
        device = on_device(caches)
        for at in (0, 1, 2, 2, 1):
            q, k, v = (heads(1, n, 1, 16) for n in (4, 2, 2))
            place = torch.tensor([at])
            same(f(*on_device([q, k, v]), *device, place.to("vulkan")), step(q, k, v, *caches, place))


# What a device can hold ------------------------------------------------------------------------------------


def test_some_tile_fits_the_least_device():
    least = DeviceInfo(0, "least", "discrete", limits=Limits())
    assert any(tile.fits(least, 256) for tile in FMA_TILES)
    small = dataclasses.replace(least, limits=dataclasses.replace(Limits(), max_workgroup_invocations=1024))
    assert not FMA_TILES[0].fits(small, 64)


def test_matrices_only_of_types_that_the_device_multiplies():
    features = Features(
        **{f.name: True for f in dataclasses.fields(Features) if f.name.startswith("cooperative_matrix2")}
    )
    shape = CooperativeShape(16, 16, 16, "float16", "float16", "float32", "float32", "workgroup", False, True, 256)
    info = DeviceInfo(
        0, "card", "discrete", features=features, cooperative_shapes=(shape,), max_cooperative_workgroup=256
    )
    tile = WorkgroupTile(128, 64, 256)
    assert tile.fits(info, torch.float16, 64, 64)
    assert not tile.fits(info, torch.bfloat16, 64, 64)
    assert not WorkgroupTile(64, 64, 128).fits(info, torch.float16, 64, 64)
    assert not WorkgroupTile(8, 64, 256).fits(info, torch.float16, 64, 64)
    assert not tile.fits(DeviceInfo(0, "other", "discrete"), torch.float16, 64, 64)
