"""Tuning of attention: every template as a candidate, and that a compiled graph takes what was chosen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from compiled import on_device, same

import vkinductor
from vkinductor.codegen.attention import decode, tiles
from vkinductor.codegen.tuning.attention import ATTENTION, _check, problem_of
from vkinductor.codegen.tuning.results import results
from vkinductor.codegen.tuning.tuner import tune
from vkinductor.device.attention import whole
from vkinductor.device.registry import registry


@pytest.fixture(autouse=True)
def few_tiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Two tiles of each template, and an empty store."""
    from vkinductor.runtime.store import DiskStore

    device = registry.open().runtime
    monkeypatch.setitem(device.__dict__, "store", DiskStore(tmp_path / "store"))
    monkeypatch.setattr(tiles, "FMA_TILES", tiles.FMA_TILES[-2:])
    monkeypatch.setattr(decode, "TILES", decode.TILES[-1:])
    registry.tuning = None
    yield
    registry.tuning = None


def test_decoding() -> None:
    found = tune(ATTENTION, problem_of(1, 4, 2, 1, 70, 16, torch.float16, False), seconds=60)
    assert found is not None
    assert {(row.status, row.detail) for row in found.rows} == {("ok", "")}
    assert {row.label.split()[0] for row in found.rows} - {"workgroup"} == {"decode", "fma"}


def test_max_autotune_takes_what_it_finds() -> None:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    args = [torch.randn(1, 2, 20, 16) for _ in range(3)]
    with whole():
        got = torch.compile(f, backend="vulkan", options={"tune": True, "tuning_seconds": 60.0})(*on_device(args))
    same(got, f(*args), rtol=1e-4, atol=1e-4)
    assert vkinductor.stats()["timings"] == 2
    ((bucket, choice),) = results().index(ATTENTION).values()
    assert str(bucket) == "float32 16x16 causal batch=1 heads=2 groups=2 queries=20 keys=20"
    assert choice.startswith("fma")


@pytest.mark.parametrize("masked", ["", "bool", "bias"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_reference(masked: str, causal: bool) -> None:
    q, k, v = torch.randn(2, 4, 40, 8), torch.randn(2, 2, 40, 8), torch.randn(2, 2, 40, 8)
    mask = {"": None, "bool": torch.rand(1, 1, 40, 40) > 0.3, "bias": torch.randn(1, 1, 40, 40)}[masked]
    if causal and mask is not None:
        pytest.skip("torch takes one of them")
    want = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=True)
    values = [q, k, v] if mask is None else [q, k, v, mask]
    assert _check(values, want, causal, 8**-0.5, (1e-5, 1e-4)) is None
    assert _check(values, want * 1.01, causal, 8**-0.5, (1e-5, 1e-4)) is not None
