"""Tuning of kernels that scheduling generates: that every layout is right, what is kept and taken, what is dropped."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import on_device, same
from tuning_cases import told

import vkinductor
from vkinductor.codegen import heuristics, tuning
from vkinductor.codegen.tuning import kernels, layouts
from vkinductor.codegen.tuning.kernels import GENERATED, POINTWISE, REDUCTION, TRANSPOSE
from vkinductor.codegen.tuning.layouts import Layout
from vkinductor.codegen.tuning.results import Result, results
from vkinductor.codegen.tuning.select import Times
from vkinductor.device.registry import registry


@pytest.fixture(autouse=True)
def small_problems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Kernels of a few bytes are measured, in four layouts, and an empty store takes the results."""
    from vkinductor.runtime.store import DiskStore

    device = registry.open().runtime
    monkeypatch.setitem(device.__dict__, "store", DiskStore(tmp_path / "store"))
    monkeypatch.setattr(kernels, "FEWEST_BYTES", 1)
    monkeypatch.setattr(kernels, "FEWEST_BYTES_OF_ROWS", 1)
    monkeypatch.setitem(layouts.MOST, True, 3)
    registry.tuning = None
    yield
    registry.tuning = None


@pytest.fixture
def gpu_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layouts as of a GPU."""
    monkeypatch.setitem(layouts.ROWS, True, layouts.ROWS[False])
    monkeypatch.setitem(layouts.ELEMENTS, True, layouts.ELEMENTS[False])


def tuned(f: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What ``f`` returns when it is compiled with tuning."""
    torch._dynamo.reset()
    return torch.compile(f, backend="vulkan", options={"tune": True, "tuning_seconds": 60.0, **options})(*args)


def found(family: Any) -> list[Result]:
    """What was measured of a family."""
    return [result for result in results().seen.values() if result.family == family.name]


def offering(monkeypatch: pytest.MonkeyPatch, *settings: dict[str, Any]) -> None:
    """Kernels of rows have these layouts besides the heuristic's."""
    monkeypatch.setattr(layouts, "rows", lambda info, layout, facts: [Layout(s) for s in settings])


def taking(monkeypatch: pytest.MonkeyPatch, fastest: dict[str, Any]) -> None:
    """The layout of these settings is the fastest, whatever the device says."""
    from vkinductor.codegen.tuning import select as choosing
    from vkinductor.codegen.tuning import tuner

    def select(labels: Any, sample: Any, expired: Any, baseline: Any) -> Any:
        wanted = str(Layout(fastest))
        return choosing.select(
            labels, lambda name: sample(name) and Times(*[1.0 if name == wanted else 2.0] * 2), expired, baseline
        )

    monkeypatch.setattr(tuner, "select", select)


def rms(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = x + residual
    return h, F.rms_norm(h, (h.shape[-1],), weight)


def nll(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.nll_loss(F.log_softmax(x, -1), target, reduction="none")


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "two results": (rms, (torch.randn(9, 96), torch.randn(9, 96), torch.randn(96)), REDUCTION),
    "halves": (lambda x: x.softmax(-1), (torch.randn(7, 130).half(),), REDUCTION),
    "indices": (nll, (torch.randn(12, 40), torch.randint(0, 40, (12,))), REDUCTION),
    "columns": (lambda x: x.amax(0), (torch.randn(40, 24),), REDUCTION),
    "places": (lambda x: x.argmax(-1), (torch.randn(5, 64),), REDUCTION),
    "chain": (lambda x, y: torch.relu(x * 2 + y), (torch.randn(33, 64), torch.randn(64)), POINTWISE),
    "bits": (lambda x: x > 0, (torch.randn(64, 16),), POINTWISE),
    "rows by index": (lambda w, i: F.embedding(i, w) * 2, (torch.randn(20, 16), torch.randint(0, 20, (9,))), POINTWISE),
}


@pytest.mark.parametrize("name", CASES)
def test_every_layout_is_right(name: str, gpu_tables: None) -> None:
    f, args, family = CASES[name]
    vkinductor.reset_stats()
    got = tuned(f, *on_device(args))
    same(got, f(*args), rtol=5e-3, atol=5e-3)
    (result,) = found(family)
    assert {(row.status, row.detail) for row in result.rows} == {("ok", "")}
    assert result.baseline == result.rows[0].label == "heuristic"
    assert 1 < len(result.rows) == vkinductor.stats()["timings"]
    assert result.complete
    assert not vkinductor.stats()["fallbacks"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tiles_of_transposes(monkeypatch: pytest.MonkeyPatch, gpu_tables: None, dtype: torch.dtype) -> None:
    monkeypatch.setattr(heuristics, "tile_shapes", _tile_shapes)
    x = torch.randn(2, 64, 48).to(dtype)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 2, 1).contiguous()

    same(tuned(f, *on_device([x])), f(x), rtol=0, atol=0)
    (result,) = found(TRANSPOSE)
    assert {row.status for row in result.rows} == {"ok"}
    assert any("tile=" in row.label for row in result.rows)


def _tile_shapes(info: Any, narrowest: int) -> list[tuple[int, int]]:
    tile = heuristics.forced("tile")
    return [(32, 32)] if tile is None else [tile] if tile else []


def test_sums_of_columns_in_a_kernel_of_rows(gpu_tables: None) -> None:
    """LayerNorm's gradients, as on a GPU."""
    x, dy, w = torch.randn(64, 32), torch.randn(64, 32), torch.randn(32)
    mean = x.mean(-1, keepdim=True)
    rstd = (x.var(-1, keepdim=True, correction=0) + 1e-5).rsqrt()

    def f(dy: Any, x: Any, mean: Any, rstd: Any, w: Any) -> Any:
        return torch.ops.aten.native_layer_norm_backward(dy, x, (32,), mean, rstd, w, w, [True, True, True])

    args = (dy, x, mean, rstd, w)
    with heuristics.override(reads_dominate=1, fewest_with_sums=256):
        got = tuned(f, *on_device(args))
    same(list(got), list(f(*args)), rtol=1e-3, atol=1e-3)
    mixed = [result for result in found(REDUCTION) if "sums=" in result.bucket.kind]
    assert len(mixed) == 1
    assert {row.status for row in mixed[0].rows} == {"ok"}


def test_what_is_written_in_place(gpu_tables: None) -> None:
    """The operand has its values again before another layout is compared."""
    x = torch.randn(32, 32)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.mm(x)) * 3 + 1

    same(tuned(f, *on_device([x])), f(x), rtol=1e-4, atol=1e-4)

    def g(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(1)
        return x

    moved = on_device([x])
    tuned(g, *moved)
    same(moved[0], x * 2 + 1, rtol=1e-6, atol=1e-6)
    results_of = [result for result in found(POINTWISE) if "add" in result.bucket.kind]
    assert results_of
    assert {row.status for result in results_of for row in result.rows} == {"ok"}


def test_a_problem_is_measured_once(gpu_tables: None) -> None:
    x = torch.randn(8, 64)
    same(tuned(lambda x: x.softmax(-1), *on_device([x])), x.softmax(-1), rtol=1e-4, atol=1e-5)
    before = vkinductor.stats()["timings"]
    assert before > 1
    registry.tuning = None  # as in another process
    y = tuned(lambda x: x.softmax(-1), *on_device([x + 1]))
    same(y, (x + 1).softmax(-1), rtol=1e-4, atol=1e-5)
    assert vkinductor.stats()["timings"] == before


FAST = {"lanes": 8, "rows": 2, "elements": 8, "width": 1}


def test_the_default_takes_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    offering(monkeypatch, FAST)
    taking(monkeypatch, FAST)
    taken: list[dict[str, Any]] = []
    monkeypatch.setattr("vkinductor.codegen.scheduling.tuned", _noting(taken))

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1)

    def compiled(*size: int) -> None:
        torch._dynamo.reset()
        x = torch.randn(size)
        same(torch.compile(f, backend="vulkan", dynamic=False)(*on_device([x])), f(x), rtol=1e-4, atol=1e-5)

    compiled(12, 64)
    before = tuning.fingerprint()
    tuned(f, *on_device([torch.randn(12, 64)]))
    compiled(12, 64)  # the problem itself
    compiled(20, 48)  # a neighbour
    compiled(300, 64)  # none
    assert taken == [{}, FAST, FAST, FAST, {}]
    assert tuning.fingerprint() != before == ""


def _noting(taken: list[dict[str, Any]]) -> Callable[..., Any]:
    def settings(scheduling: Any, features: Any) -> dict[str, Any]:
        known = results()
        taken.append(kernels.settings(scheduling, features, tuning.choice, tuning.searching_now(), known))
        return taken[-1]

    return settings


def test_the_default_generates_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_drafted", lambda *arguments: pytest.fail("a kernel is drafted"))
    x = torch.randn(8, 64)
    same(torch.compile(lambda x: x.softmax(-1), backend="vulkan")(*on_device([x])), x.softmax(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("option", ["check_bounds", "persistent"])
def test_what_is_not_tuned(option: str) -> None:
    x = torch.randn(8, 64)
    vkinductor.reset_stats()
    same(tuned(lambda x: x.softmax(-1), *on_device([x]), **{option: True}), x.softmax(-1), rtol=1e-4, atol=1e-5)
    with heuristics.override(lanes=4):
        tuned(lambda x: x.softmax(-1), *on_device([x]))
    assert vkinductor.stats()["timings"] == 0


def test_small_kernels_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "FEWEST_BYTES_OF_ROWS", 1 << 16)
    vkinductor.reset_stats()
    tuned(lambda x: x.softmax(-1), *on_device([torch.randn(8, 64)]))
    assert vkinductor.stats()["timings"] == 0


def test_wrong_and_failing_layouts_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"lanes": 16, "rows": 2, "elements": 4}
    unlowered = {"lanes": 0}
    broken = {"lanes": 1 << 20, "rows": 1, "elements": 0}
    offering(monkeypatch, wrong, unlowered, broken, FAST)
    monkeypatch.setitem(layouts.MOST, True, 4)
    program = kernels.program

    def short(text: Any, of: Any, items: int) -> Any:
        """The kernel of that layout is launched for the first rows alone."""
        if "local_size_x = 32)" in text.glsl:
            text = dataclasses.replace(text, per_group=100 * text.per_group)
        return program(text, of, items)

    monkeypatch.setattr(kernels, "program", short)
    x = torch.randn(8, 64)
    same(tuned(lambda x: x.softmax(-1), *on_device([x])), x.softmax(-1), rtol=1e-4, atol=1e-5)
    (result,) = found(REDUCTION)
    rows = {row.label: row for row in result.rows}
    assert rows[str(Layout(wrong))].status == "wrong"
    assert "instead of" in rows[str(Layout(wrong))].detail
    assert rows[str(Layout(unlowered))].status == rows[str(Layout(broken))].status == "failed"
    assert "ZeroDivisionError" in rows[str(Layout(unlowered))].detail
    assert rows[str(Layout(broken))].detail
    assert rows["heuristic"].status == rows[str(Layout(FAST))].status == "ok"


def test_without_the_heuristics_kernel_nothing_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """There would be nothing to compare others with."""
    offering(monkeypatch, FAST)
    program = kernels.program

    def failing(text: Any, of: Any, items: int) -> Any:
        if "lane == 0" not in text.glsl or "% 8" not in text.glsl:
            raise ZeroDivisionError("no")
        return program(text, of, items)

    monkeypatch.setattr(kernels, "program", failing)
    x = torch.randn(8, 64)
    same(tuned(lambda x: x.amax(-1), *on_device([x])), x.amax(-1), rtol=0, atol=0)
    assert not results().index(REDUCTION)


def test_a_mistake_of_the_tuner_fails_no_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "structure", lambda nodes: 1 / 0)
    x = torch.randn(8, 64)
    with told() as warnings:
        same(tuned(lambda x: x.softmax(-1), *on_device([x])), x.softmax(-1), rtol=1e-4, atol=1e-5)
    assert warnings == ["a kernel is not tuned"]


def test_sizes_that_vary_share_a_result(gpu_tables: None) -> None:
    torch._dynamo.reset()
    vkinductor.reset_stats()
    options = {"tune": True, "tuning_seconds": 60.0}
    f = torch.compile(lambda x: torch.relu(x * 2 + 1), backend="vulkan", options=options, dynamic=True)
    for n in (20, 30):
        x = torch.randn(n, 64)
        same(f(*on_device([x])), torch.relu(x * 2 + 1), rtol=1e-5, atol=1e-5)
    (result,) = found(POINTWISE)
    assert "~" in str(result.bucket)
    assert vkinductor.stats()["timings"] == len(result.rows)


# Layouts of a card: no device.


def card_rows(
    rows: int, row: int, access: heuristics.RowAccess
) -> tuple[Any, heuristics.ReductionLayout, list[Layout]]:
    from cards import card

    info = card()
    layout = heuristics.reduction(info, row, row, rows, 0, access)
    return info, layout, layouts.rows(info, layout, layouts.Rows(row, row, rows, 2, access))


@pytest.mark.parametrize(("rows", "row"), [(1, 1 << 20), (64, 32768), (512, 16384), (65536, 256), (1 << 20, 3)])
@pytest.mark.parametrize("sums", [0, 2])
def test_layouts_of_a_card(rows: int, row: int, sums: int) -> None:
    access = heuristics.RowAccess(2, 2, 2, 16 if row % 16 == 0 else 1, sums=sums)
    info, _, found = card_rows(rows, row, access)
    assert len({str(layout) for layout in found}) == len(found)
    for layout in found:
        s = layout.settings
        assert s["lanes"] * s["rows"] <= info.limits.max_workgroup_invocations
        assert s["elements"] == 0 or s["lanes"] * s["elements"] >= row
        assert s["elements"] % s["width"] == 0
        assert s["elements"] or not sums
        assert layout.estimate > 0


def test_the_model_puts_likely_layouts_first() -> None:
    """Rows of 16384 halves and a residual: workgroups of 256 are among the first, those that load little are not."""
    _, _, found = card_rows(512, 16384, heuristics.RowAccess(2, 2, 2, 16))
    first = [layout.settings for layout in found[: layouts.MOST[False]]]
    assert any(s["lanes"] == 256 and s["elements"] == 64 for s in first)
    assert any(s["elements"] == 0 for s in first)
    assert all(s["lanes"] >= 64 for s in first)


def test_elements_of_a_card() -> None:
    from cards import card

    for sizes, most in (((2, 2), 16), ((8, 1), 8), ((4, 4), 16)):
        found = layouts.elements(card(), sizes, 1 << 24, 8)
        assert max(layout.settings["width"] for layout in found) == most
        assert found[0].settings["width"] == 8
    tiles = [layout.settings["tile"] for layout in layouts.tiles(card(), (2, 2), (2048, 2048))]
    assert {(), (64, 64), (128, 64)} <= set(tiles)
    assert all(2 * wide * high * 2 <= card().limits.max_shared_memory for wide, high in filter(None, tiles))


# Names of kernels.


def structures(f: Callable[..., Any], *sizes: Sequence[int], **options: Any) -> list[str]:
    """The kinds under which ``f`` of tensors of these sizes is kept."""
    kinds = []
    for size in sizes:
        results().seen.clear()
        tuned(f, *on_device([torch.randn(size, **options)]))
        kinds += [result.bucket.kind for family in GENERATED for result in found(family)]
    return kinds


def test_structures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "rows", lambda info, layout, facts: [Layout(FAST)])
    one, other, odd = structures(lambda x: x.mean(-1), (6, 32), (10, 64), (6, 33))
    assert one == other != odd
    (half,) = structures(lambda x: x.mean(-1), (6, 32), dtype=torch.float16)
    (scaled,) = structures(lambda x: x.mean(-1) * 7, (6, 32))
    assert len({one, half, scaled}) == 3


# Another process.

SCRIPT = r"""
import json, torch, vkinductor
from vkinductor.codegen.tuning import kernels, layouts
kernels.FEWEST_BYTES = kernels.FEWEST_BYTES_OF_ROWS = 1
layouts.MOST[True] = 2
def f(x):
    return (x * 2 + 1).softmax(-1)
x = torch.randn(8, 64)
got = torch.compile(f, backend="vulkan", mode="max-autotune")(x)
torch.testing.assert_close(got, f(x), rtol=1e-4, atol=1e-5)
torch.testing.assert_close(torch.compile(lambda x: f(x) * 2, backend="vulkan")(x), f(x) * 2, rtol=1e-4, atol=1e-5)
print(json.dumps({"timings": vkinductor.stats()["timings"], **vkinductor.cache_stats()}))
"""


def run(folder: Path) -> dict[str, Any]:
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "VKINDUCTOR_CACHE_DIR": str(folder / "vk"),
    }
    root = str(Path(__file__).parents[2])
    env = {**os.environ, **caches, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_second_process_times_nothing(tmp_path: Path) -> None:
    assert run(tmp_path)["timings"] == 3
    again = run(tmp_path)
    assert again["timings"] == 0
    assert (again["graph"]["hits"], again["graph"]["misses"]) == (2, 0)
