"""Indirect loads, scatters, masks, strided views and 64-bit addressing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import DTYPES, FLOATS, check, compiled, copies, name_of, on_device, same

import vkinductor

WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def test_embedding_with_strided_table_and_indices() -> None:
    def f(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return F.embedding(index, table) * 2

    table = torch.randn(16, 50).t()[::2, 1:9]
    index = torch.randint(0, 25, (6, 9))[::2].t()
    assert not table.is_contiguous()
    assert not index.is_contiguous()
    check(f, table, index)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8], ids=name_of)
def test_gathers(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, rows: torch.Tensor, wide: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "rows": x[rows],
            "columns": x[:, rows],
            "both": x[rows, rows],
            "mixed": x[rows[:, None], wide[None, :2]],
            "index_select": x.index_select(1, wide),
            "gather": x.gather(1, wide[None].expand(3, -1)),
            "take": x.take(wide),
            "one_hot": F.one_hot(wide, 12).float() @ x[:12],
            "where": x[torch.where(mask, wide, 0)],
        }

    rows = torch.tensor([3, 0, 11, 3, 7]).to(dtype)
    if dtype == torch.uint8:
        rows = rows.to(torch.int64)  # uint8 indexing means a mask in torch
    wide = torch.tensor([3, 0, 11, 3, 7])
    check(f, torch.randn(12, 12), rows, wide, torch.tensor([True, False, True, False, True]))


def test_negative_indices_wrap() -> None:
    def f(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x[i], x[:, i], x[i, -i - 1], x.index_put((i,), v)

    # Each place once: which of two writes to one place wins is anyone's guess on a GPU.
    check(f, torch.randn(12, 12), torch.tensor([-1, 5, -12, 1, 10]), torch.randn(5, 12))


def test_an_index_out_of_range_reads_and_writes_inside() -> None:
    """What it gives is undefined; what it must not do is touch other memory or lose the device."""

    def f(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x[i], F.embedding(i.abs(), x), x.index_put((i,), v), x.index_add(0, i, v), x.gather(0, i[:, None])

    i = torch.tensor([1 << 20, -(1 << 20), (1 << 33) + 7, -(1 << 40), 3])
    x = torch.randn(8, 4)
    result = compiled(f)(*on_device([x, i, torch.randn(5, 4)]))
    same(result[0][4], x[3])
    assert [tuple(r.shape) for r in result] == [(5, 4), (5, 4), (8, 4), (8, 4), (5, 1)]
    vkinductor.synchronize()
    check(lambda x: x + 1, x)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in WIDE_UNSIGNED], ids=name_of)
def test_scatters_in_every_dtype(dtype: torch.dtype) -> None:
    """Many additions to few places: none is lost, and the neighbours in the same word keep their values."""

    def f(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> dict[str, torch.Tensor]:
        results = {
            "put": x.index_put((i[:7],), v[:7]),
            "accumulate": x.index_put((i,), v, accumulate=True),
            "scatter": x.scatter(0, i[:7, None].expand(-1, 3), v[:7]),
        }
        if dtype != torch.bool:
            results["scatter_add"] = x.scatter_add(0, i[:, None].expand(-1, 3), v)
            results["index_add"] = x.index_add(0, i, v)
        return results

    count = 60
    i = torch.cat([torch.tensor([0, 2, 4, 6, 1, 3, 5]), torch.randint(0, 7, (count - 7,))])
    v = (torch.arange(count * 3).reshape(count, 3) % 5 - (2 if dtype.is_signed else 0)).to(dtype)
    x = (torch.arange(21).reshape(7, 3) % 3).to(dtype)
    check(f, x, i, v, tolerance={"rtol": 1e-2, "atol": 0.3} if dtype in FLOATS[:2] else None)


def test_scatter_of_strided_operands() -> None:
    def f(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.index_add(1, i, v), x.scatter_reduce(1, i.expand(6, -1), v, "sum")

    check(f, torch.randn(9, 6).t(), torch.randint(0, 9, (5,)), torch.randn(10, 6).t()[:, ::2])


def test_masks_and_shapes() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {
            "cat0": torch.cat([x, y]),
            "cat1": torch.cat([x, y * 2, x[:, :3]], 1),
            "stack": torch.stack([x, y], 1),
            "pad": F.pad(x, (1, 2, 3, 4), value=2.5),
            "crop": F.pad(x, (-2, -1, 0, -3)),
            "reflect": F.pad(x[None], (2, 3), mode="reflect"),
            "replicate": F.pad(x[None], (2, 3), mode="replicate"),
            "circular": F.pad(x[None], (2, 3), mode="circular"),
            "flip": x.flip(0, 1),
            "roll": x.roll((2, -3), (0, 1)),
            "step": x[1::3, ::2] + y[1::3, ::2],
            "tril": x.tril(1) + y.triu(-2),
            "diagonal": x.diagonal(1) * 2,
            "repeat": x.repeat(2, 3),
            "interleave": x.repeat_interleave(2, 1),
            "unfold": x.unfold(1, 4, 2) + 0,
            "chunk": [c + 1 for c in x.chunk(3, 1)],
            "slice_scatter": x.slice_scatter(y[:, :2], 1, 3, 5),
            "select_scatter": x.select_scatter(y[0], 0, 4),
            "rot90": x.rot90() + 0,
            "meshgrid": [g + 0 for g in torch.meshgrid(x[0], y[:, 0], indexing="ij")],
            "pixel": F.pixel_shuffle(x[:8, :8].reshape(1, 4, 4, 4), 2) + 0,
        }

    check(f, torch.randn(11, 13), torch.randn(11, 13))


def test_resampling_and_pooling() -> None:
    def f(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "nearest": F.interpolate(x, scale_factor=2.0),
            "bilinear": F.interpolate(x, size=(9, 7), mode="bilinear"),
            "aligned": F.interpolate(x, size=(9, 7), mode="bilinear", align_corners=True),
            "max": F.max_pool2d(x, 2),
            "avg": F.avg_pool2d(x, 3, 2, 1),
            "adaptive": F.adaptive_avg_pool2d(x, 2),
        }

    check(f, torch.randn(2, 3, 8, 10))


def test_strided_views() -> None:
    base = torch.randn(20, 30)
    views = [
        base.t()[3:13, 2:12],
        base[::2, ::3],
        base[:1, :10].expand(10, 10),
        base[2, 5:15],
        base.view(-1)[7:107].view(10, 10),
        base.as_strided((10, 10), (1, 2), 11),
        base[:10, 4:5].expand(10, 10),
    ]

    def f(*views: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = views[0] * 1
        for view in views[1:]:
            total = total + view
        return total, total.t().contiguous(), views[1].t() * 2, views[2].sum(0), views[0].reshape(-1) + 1

    check(f, *views)


def test_outputs_that_are_views() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y.t(), y[1:, ::2], y.view(-1), y.expand(2, *y.shape), x.t()

    result = check(f, torch.randn(4, 6))
    assert result[0].stride() == (1, 6)
    assert result[0].data_ptr() == result[2].data_ptr()


class TestInPlace:
    """Writes into arguments and between views of one storage, in the order of the program."""

    def hold(self, f: Any, *args: Any) -> None:
        expected_args, actual_args = copies(args), on_device(args)
        expected = f(*expected_args)
        actual = compiled(f)(*actual_args)
        same((actual, actual_args), (expected, expected_args))

    def test_chain(self) -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            x.add_(1).mul_(2)
            x[1:3] = x[2:4] * 3
            x[:, 0].copy_(x[:, 1])
            return x.sum()

        self.hold(f, torch.randn(5, 4))

    def test_overlapping_views(self) -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            left, right = x[:-1], x[1:]
            left.add_(right.clone())
            right.mul_(2)
            left.sub_(1)
            return left + right

        self.hold(f, torch.randn(40))

    def test_shift_within_itself(self) -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            x[1:] = x[:-1].clone()
            x[:-2] += x[2:] * 1
            return x * 2

        self.hold(f, torch.randn(3000))

    def test_transposed_onto_itself(self) -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            x.copy_(x.t() + x)
            return x + 1

        self.hold(f, torch.randn(33, 33))

    def test_arguments_that_alias(self) -> None:
        def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            return x[:3] + y[:3]

        base = torch.randn(12)
        self.hold(f, base[:8], base[2:])

    def test_cache_update(self) -> None:
        def f(cache: torch.Tensor, new: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            cache.index_copy_(1, position, new)
            return cache.sum((1, 2))

        self.hold(f, torch.zeros(2, 8, 4), torch.randn(2, 2, 4), torch.tensor([3, 5]))

    def test_two_steps_on_the_same_buffer(self) -> None:
        """The second call reads what the first wrote, not what it cached."""

        def f(cache: torch.Tensor, new: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            cache.index_copy_(0, position, new)
            return (cache @ new.t()).softmax(0)

        g = compiled(f)
        expected_cache = torch.zeros(6, 4)
        cache = expected_cache.to("vulkan")
        for step in range(3):
            new, position = torch.randn(1, 4), torch.tensor([step])
            same(g(cache, new.to("vulkan"), position.to("vulkan")), f(expected_cache, new, position))
        same(cache, expected_cache)


def test_64_bit_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of kernel with int64 index arithmetic, as tensors of 2**31 elements and more get."""
    from torch._inductor.codegen.simd import SIMDScheduling as VulkanScheduling

    monkeypatch.setattr(VulkanScheduling, "can_use_32bit_indexing", staticmethod(lambda *a, **k: False))

    def pointwise(x: torch.Tensor, i: torch.Tensor) -> dict[str, Any]:
        return {
            "view": x[1:, ::2].t() * 2,
            "gather": x[i] + x[-i - 1],
            "pad": F.pad(x, (1, 2, 3, 4), value=0.5),
            "cat": torch.cat([x, x.flip(0)], 1),
            "roll": x.roll(3, 1),
            "put": x.index_put((i,), x[:3]),
            "add": x.index_add(0, i, x[:3]),
            "iota": torch.arange(x.shape[0], device=x.device)[:, None] * x,
        }

    def reductions(x: torch.Tensor, i: torch.Tensor) -> dict[str, Any]:
        return {"softmax": x.softmax(-1), "argmax": x.argmax(-1), "sum0": x.sum(0), "var": torch.var_mean(x, 1)}

    def products(x: torch.Tensor, i: torch.Tensor) -> dict[str, Any]:
        return {"mm": F.silu(x @ x.t()) + 1, "mv": x[:1] @ x.t(), "bmm": torch.bmm(x[None], x.t()[None])}

    for f in (pointwise, reductions, products):
        check(f, torch.randn(17, 40), torch.tensor([2, 0, 16]), tolerance={"rtol": 1e-5, "atol": 1e-5})
    from torch._inductor.utils import run_and_get_code

    _, (code,) = run_and_get_code(compiled(lambda x: x.t() + 1), torch.randn(4, 5, device="vulkan"))
    assert "const int64_t xindex" in code


@pytest.mark.parametrize("count", [65536 * 256 + 1, 2_703_360, 65535 * 256 + 1])
def test_more_workgroups_than_one_dimension_holds(count: int) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        return y, y.sum(dtype=torch.int64)

    x = (torch.arange(count) % 97).to(torch.int16)
    check(f, x)


def test_a_constant_index_behind_a_mask_that_is_never_true():
    """GLSL refuses a negative constant as an index, even where no invocation gets there."""

    def f(x):
        joined = torch.cat([x[:2], x.sin(), x[:1]], 0)
        return joined[:1].mean(0) + 1, joined[1:2] - torch.cat([x[:2], x.sin()], 0)[1:2].mean()

    check(f, torch.randn(3))


def test_masks_that_compare_indices_do_not_mix_them_up():
    """Two masked parts of one kernel, each with a comparison of indices of its own (values of both have one name)."""

    def f(x, y):
        out = (torch.cat([y.softmax(-1), y], 0)[2:10] + x) * 1.5
        out[:4] = torch.sin(y[:4])
        chosen = torch.where(y > out, out, -y)
        moved = torch.cat([chosen.softmax(-1), out], 0)[2:10] + chosen
        return torch.cat([moved[1:], chosen[:1]], 0)

    for seed in range(8):
        torch.manual_seed(seed)
        x, y = torch.randn(8, 1), torch.randn(8, 1)
        same(compiled(f)(*on_device([x, y])), f(x, y))


def test_an_index_computed_from_positions_as_floats():
    """transformers' T5. A position's range is of integers to one analysis and of floats to another."""

    def bucket(table):
        near = torch.arange(7, device=table.device)
        far = (torch.arange(7, device=table.device).float() / 2).long()
        return table[torch.where(near < 3, near, far)]

    check(bucket, torch.rand(10))


@pytest.mark.parametrize("layout", [{"lanes": 32}, {"lanes": 32, "elements": 0}], ids=["persistent", "looped"])
def test_64_bit_indices_of_wide_rows(monkeypatch: pytest.MonkeyPatch, layout: dict[str, int]) -> None:
    """Mesa 22.3's lavapipe: loads that depend on 64-bit comparisons."""
    from torch._inductor.codegen.simd import SIMDScheduling as VulkanScheduling

    from vkinductor.codegen import heuristics

    monkeypatch.setattr(VulkanScheduling, "can_use_32bit_indexing", staticmethod(lambda *a, **k: False))
    with heuristics.override(width=4, rows=8, **layout):
        check(lambda x: (x.softmax(-1), x.argmax(-1), torch.var_mean(x, 1)), torch.randn(17, 40))
