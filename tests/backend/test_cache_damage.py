"""Damaged caches from end to end: whatever lies in the folders, results are right and the files are made anew."""

from __future__ import annotations

import os
import random
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.codecache import PyCodeCache

from vkinductor.runtime import context

ROUNDS = 60  # tests/runtime/test_store_stress.py does the rest of a thousand


def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 1.375 + y, -1) - 0.4375


def cached(*folders: Path) -> list[Path]:
    return sorted(file for folder in folders for file in folder.rglob("*") if file.is_file())


def damage(path: Path, rng: random.Random) -> str:
    """Do one random thing to a file; returns what was done."""
    content = path.read_bytes()
    how = rng.choice(["truncate", "flip", "flip", "zeros", "empty", "foreign", "missing"])
    if how == "truncate":
        path.write_bytes(content[: rng.randrange(max(1, len(content)))])
    elif how == "flip":
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 1, 8])):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(damaged))
    elif how == "foreign":
        path.write_bytes(rng.randbytes(300))
    elif how == "missing":
        path.unlink()
    else:
        path.write_bytes(bytes(len(content)) if how == "zeros" else b"")
    return how


def run() -> tuple[torch.Tensor, Counter[str]]:
    """What a new process would do: compile with nothing in memory. Returns the result and Inductor's counts."""
    torch._dynamo.reset()
    PyCodeCache.cache_clear()
    counters.clear()
    torch.manual_seed(0)
    x, y = torch.randn(5, 7), torch.randn(5, 7)
    result = torch.compile(f, backend="vulkan", fullgraph=True)(x, y)
    torch.testing.assert_close(result, f(x, y))
    return result, counters["inductor"] + counters["aot_autograd"]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_device: Any) -> tuple[Path, Path]:
    """Empty caches of this test's own: (Inductor's, ours)."""
    inductor, ours = tmp_path / "inductor", tmp_path / "vk"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(inductor))
    fresh_device(VKINDUCTOR_CACHE_DIR=str(ours))
    return inductor, ours


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_random_damage_of_every_cache(folders: tuple[Path, Path]) -> None:
    expected, _ = run()
    rng = random.Random(0)
    for number in range(ROUNDS):
        files = cached(*folders)
        assert {file.suffix for file in files} >= {"", ".py"}
        # Files of graphs that were compiled anew under another name stay as they are.
        victim = rng.choice([file for file in files if file.stat().st_size])
        what = f"{damage(victim, rng)} of {victim} in round {number}"
        if victim.is_relative_to(folders[1]):
            context.reset()  # pipelines are kept as long as the device is open
        result, _ = run()
        assert torch.equal(result, expected), what
    context.reset()
    run()
    result, seen = run()
    assert seen["autograd_cache_hit"] == 1
    assert seen["fxgraph_cache_miss"] == 0


def test_a_damaged_graph_is_a_miss_and_is_replaced(folders: tuple[Path, Path]) -> None:
    """A flipped byte in a constant of a cached graph would be a wrong number, not an error."""
    expected, _ = run()
    for name in ("fxgraph", "aotautograd"):
        for file in cached(folders[0] / name):
            content = file.read_bytes()
            damaged = content.replace(b"1.375", b"1.875")
            if name == "fxgraph":
                assert damaged != content
            file.write_bytes(damaged[:-1] if damaged == content else damaged)
        result, seen = run()
        assert torch.equal(result, expected)
        assert seen["autograd_cache_miss"] == 1
        assert run()[1]["autograd_cache_hit"] == 1


def test_a_damaged_program_is_written_anew(folders: tuple[Path, Path]) -> None:
    expected, _ = run()
    (program,) = (file for file in cached(folders[0]) if file.suffix == ".py")
    content = program.read_text()
    program.write_text(content.replace("1.375", "1.875"))
    result, seen = run()
    assert torch.equal(result, expected)
    assert seen["autograd_cache_hit"] == 1
    assert program.read_text().strip() == content.strip()


def test_other_versions_and_devices_miss(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    from torch._inductor import codecache

    from vkinductor.codegen import cache_key

    expected, _ = run()
    device = context.get()
    changes: dict[str, tuple[Any, str, Any]] = {
        "driver": (device, "info", dataclasses.replace(device.info, driver_version=device.info.driver_version + 1)),
        "UUID": (device, "info", dataclasses.replace(device.info, uuid="0" * 32)),
        "compiler": (device.compiler, "version", "0.0.1"),
        "template or version of this package": (cache_key, "code_version", lambda: "another"),
        "torch": (codecache, "torch_key", lambda: b"another"),
    }
    for what, (place, name, value) in changes.items():
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            result, seen = run()
            assert seen["autograd_cache_miss"] == seen["fxgraph_cache_miss"] == 1, what
            assert torch.equal(result, expected), what
            assert run()[1]["autograd_cache_hit"] == 1, what  # and is cached in turn
        assert run()[1]["autograd_cache_hit"] == 1, what


def test_a_folder_that_cannot_be_written_warns_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vkinductor.codegen import graph_cache

    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "inductor"))
    with pytest.warns(RuntimeWarning, match="TORCHINDUCTOR_CACHE_DIR"):
        graph_cache._use_writable_folder()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == graph_cache._temporary_folder().name
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph_cache._use_writable_folder()
        run()
