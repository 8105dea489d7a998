"""Attention on matrices of subgroups, forward and backward, emulated by plain invocations.

Problems are small: an emulation has many passes of loops, and Mesa 22.3's lavapipe ends them after 65,535
(loop_limit.py); larger ones take another template there.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from attention_cases import check, check_gradients, heads, sdpa, whole
from compiled import compiled, dispatches, on_device, same

from vkinductor.codegen.attention.problem import Problem
from vkinductor.codegen.attention.subgroups import TILES, SubgroupTile, fitting
from vkinductor.runtime.deviceinfo import CooperativeShape, DeviceInfo, Features, Limits

FLAT = SubgroupTile(2, 16, shape=(8, 8, 8), emulated=8)
# Two matrices of rows each, whose columns are those of two operands; more units than invocations.
HIGH = SubgroupTile(2, 32, high=2, shape=(8, 16, 8), emulated=4)
HIGH_BACKWARD = dataclasses.replace(HIGH, subgroups=4, bk=16)
FORCED = pytest.mark.parametrize(
    "forced",
    [
        {"attention_subgroup": FLAT, "attention_subgroup_queries": FLAT, "attention_subgroup_keys": FLAT},
        {
            "attention_subgroup": HIGH,
            "attention_subgroup_queries": HIGH_BACKWARD,
            "attention_subgroup_keys": HIGH_BACKWARD,
        },
    ],
    ids=["flat", "high"],
)
# The emulation is compiled for each size and dtype, for seconds: all edges in one dtype, one of them in the other.
HALF, BFLOAT = torch.float16, torch.bfloat16
CASES = [((37, 50), HALF), ((50, 37), HALF), ((1, 3), HALF), ((32, 32), HALF), ((37, 50), BFLOAT)]


def causal(q, k, v):
    return sdpa(q, k, v, is_causal=True)


@FORCED
@pytest.mark.parametrize(("sizes", "dtype"), CASES, ids=str)
def test_causal(forced, sizes, dtype):
    queries, keys = sizes
    with whole(attention_decode=False, **forced):
        check_gradients(causal, *(heads(1, 2, n, 16, dtype=dtype) for n in (queries, keys, keys)))


@FORCED
def test_grouped_queries_and_masks(forced):
    q, k, v = (heads(1, n, m, w, dtype=torch.float16) for n, m, w in ((2, 20, 16), (1, 35, 16), (1, 35, 32)))
    seen = torch.rand(1, 1, 20, 35) > 0.4
    seen[0, :, 3] = False  # a row that sees nothing
    with whole(attention_decode=False, **forced):
        check_gradients(sdpa, q, k, v)
        check_gradients(sdpa, q, k, v, seen)
        check_gradients(sdpa, q, k, v, torch.randn(2, 1, 35).half())


@FORCED
def test_steps_that_a_mask_leaves_out(forced):
    """Of a prompt over a cache that is longer, a window of it, rows and heads that see nothing."""
    queries, keys = 37, 70
    q, k, v = (heads(1, n, m, 16, dtype=torch.float16) for n, m in ((2, queries), (1, keys), (1, keys)))
    places = torch.arange(queries)[:, None] + 3
    behind = torch.arange(keys) <= places
    window = behind & (torch.arange(keys) > places - 9)
    window[5] = False
    apart = torch.stack((window, torch.zeros_like(behind)))[None]
    with whole(attention_decode=False, attention_counts=True, **forced):
        check(sdpa, q, k, v, apart)
        # Nobody looks at what lies in steps that are left out: not even NaN there shows.
        f = compiled(sdpa)
        k[:, :, 64:], v[:, :, 64:] = float("nan"), float("nan")
        got = f(*on_device([q, k, v, behind]))
        want = sdpa(*(x[:, :, :64].double() for x in (q, k, v)), behind[:, :64])
        same(got, want.half(), atol=2e-3, rtol=2e-3)


def test_masks_of_sizes_that_vary():
    with whole(attention_decode=False, attention_subgroup=FLAT, attention_counts=True):
        f = compiled(sdpa, dynamic=True)
        for queries, keys in ((20, 35), (33, 48)):
            q, k, v = (heads(1, 2, n, 16, dtype=torch.float16) for n in (queries, keys, keys))
            seen = torch.arange(keys) <= torch.arange(queries)[:, None]
            want = sdpa(q.double(), k.double(), v.double(), seen).half()
            same(f(*on_device([q, k, v, seen])), want, atol=2e-3, rtol=2e-3)


def test_layers_that_share_a_mask_count_it_once():
    q, k, v = (heads(1, 2, 32, 16, dtype=torch.float16) for _ in range(3))
    seen = torch.ones(32, 32, dtype=torch.bool).tril()

    def layers(q, k, v, seen):
        return sdpa(sdpa(q, k, v, seen), k, v, seen)

    with whole(attention_decode=False, attention_subgroup=FLAT, attention_counts=True):
        f, device = compiled(layers), on_device([q, k, v, seen])
        assert dispatches(f, *device) == 3
        same(f(*device), layers(q.double(), k.double(), v.double(), seen).half(), atol=2e-3, rtol=2e-3)


@FORCED
@pytest.mark.parametrize("growth", [40.0, -40.0])
def test_maxima_that_grow(forced, growth):
    """Scores that rise over the keys, or fall: what is summed follows late, or at once."""
    q, k, v = (heads(1, 2, 50, 16, dtype=torch.float16) for _ in range(3))
    q, k[..., 0] = q.abs(), torch.linspace(0, growth, 50).half()
    with whole(**forced):
        check(causal, q, k, v)


def test_scales():
    """Of any sign forward; the backward divides by it."""
    q, k, v = (heads(1, 2, 20, 16, dtype=torch.float16) for _ in range(3))
    with whole(attention_subgroup=FLAT, attention_subgroup_queries=FLAT, attention_subgroup_keys=FLAT):
        for scale in (0.7, 0.0, -0.4):
            check_gradients(lambda q, k, v, s=scale: sdpa(q, k, v, scale=s), q, k, v)


def test_strided_operands_without_copies_and_the_same_bits():
    packed = torch.randn(2, 30, 3, 4, 16).half()

    def of_packed(x):
        q, k, v = x.permute(2, 0, 3, 1, 4).unbind(0)
        return sdpa(q, k, v, is_causal=True)

    with whole(attention_subgroup=FLAT):
        first = check(of_packed, packed).cpu()
        device = on_device([packed])
        assert dispatches(compiled(of_packed), *device) == 1
        f = compiled(of_packed)
        assert all(torch.equal(f(*device).cpu(), first) for _ in range(20))


def test_rows_that_wide_loads_cannot_read_take_another_template():
    """Heads that are not contiguous, or no multiple of a matrix."""
    with whole(attention_subgroup=FLAT):
        columns = [torch.randn(1, 2, 16, n).half() for n in (20, 24, 24)]
        check(lambda q, k, v: sdpa(q.mT, k.mT, v.mT), *columns)
        check(sdpa, *(heads(1, 2, 20, 20, dtype=torch.float16) for _ in range(3)))


def test_dynamic_lengths():
    """The last one takes an emulation more passes than Mesa 22.3's lavapipe makes."""
    with whole(attention_decode=False, attention_subgroup=FLAT):
        f = compiled(causal, dynamic=True)
        for length in (5, 33, 40, 1600):
            q, k, v = (heads(1, 2, length, 16, dtype=torch.float16) for _ in range(3))
            same(f(*on_device([q, k, v])), causal(q.double(), k.double(), v.double()).half(), atol=2e-3, rtol=2e-3)


# What a device can hold ------------------------------------------------------------------------------------


def card(*shapes: tuple[int, int, int], **features: bool) -> DeviceInfo:
    """A device with such matrices of float16 and 48 KiB of shared memory."""
    found = tuple(CooperativeShape(*s, "float16", "float16", "float32", "float32", "subgroup") for s in shapes)
    limits = dataclasses.replace(Limits(), max_shared_memory=49152, subgroup_size=32, max_workgroup_invocations=1024)
    limits = dataclasses.replace(limits, max_workgroup_size=(1024, 1024, 64), max_compute_workgroup_subgroups=64)
    own = Features(cooperative_matrix=True, **features)
    return DeviceInfo(0, "card", "discrete", features=own, limits=limits, cooperative_shapes=found)


def problem(width: int, dtype: torch.dtype = torch.float16) -> Problem:
    return Problem(1, 32, 32, 512, 512, width, width, dtype, "", True, width**-0.5)


def test_tiles_that_leave_registers():
    info = card((16, 16, 16), cooperative_matrix2_conversions=True, cooperative_matrix2_reductions=True)
    assert TILES["forward"][0].high == 2
    assert TILES["forward"][0] in fitting(info, problem(64), "forward")
    assert all(tile.high == 1 for tile in fitting(info, problem(128), "forward"))
    for kernel in ("forward", "queries", "keys"):
        for width in (32, 64, 128):
            assert fitting(info, problem(width), kernel), (kernel, width)


def test_matrices_only_of_what_the_device_multiplies():
    assert not fitting(card(), problem(64), "forward")
    assert not fitting(card((16, 16, 16)), problem(64, torch.bfloat16), "forward")
    assert not fitting(card((16, 16, 16)), problem(40), "forward")
    assert fitting(card((8, 16, 16)), problem(64), "forward")[0].shape == (8, 16, 16)
    # Without conversions in registers sums pass through shared memory.
    plain, converts = (
        card((16, 16, 16)),
        card((16, 16, 16), cooperative_matrix2_conversions=True, cooperative_matrix2_reductions=True),
    )
    tile = SubgroupTile(4, 64)
    stages = [tile.context(info, problem(64), "forward")["stage"] for info in (plain, converts)]
    assert stages[0] > stages[1]
