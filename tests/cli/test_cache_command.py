"""The cache command: what is stored, emptying it, and taking it to another machine."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vkinductor.cli import main
from vkinductor.runtime.store import DiskStore


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """(our folder, Inductor's), each with two entries, made without compiling."""
    from torch._inductor.codecache import sha256_hash, write_atomic

    ours, inductor = tmp_path / "vk", tmp_path / "inductor"
    monkeypatch.setenv("VKINDUCTOR_CACHE_DIR", str(ours))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(inductor))
    store = DiskStore(ours)
    store.put("spirv", "key", b"1234")
    store.put("pipeline", "key", b"123456")
    store.get("spirv", "key")
    store.record_use()
    for folder in ("fxgraph/ab/fabc", "aotautograd/adef"):
        write_atomic(str(inductor / folder / sha256_hash(folder.encode())), folder.encode(), make_dirs=True)
    return ours, inductor


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """The command's JSON report."""

    def run(*arguments: str) -> Any:
        assert main(["cache", "--json", *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_what_is_stored(folders, report, monkeypatch):
    monkeypatch.setenv("VKINDUCTOR_CACHE_LIMIT", "5000")
    got = report()
    assert got["directory"] == str(folders[0])
    assert got["limit_bytes"] == 5000
    assert got["kinds"]["spirv"] == {"entries": 1, "bytes": 28, "hits": 1, "misses": 0}
    assert got["kinds"]["tuning"] == {"entries": 0, "bytes": 0, "hits": 0, "misses": 0}
    assert got["graph_directory"] == str(folders[1])
    assert got["graphs"] == {"fxgraph": {"entries": 1, "bytes": 15}, "aotautograd": {"entries": 1, "bytes": 16}}


def test_text(folders, capsys):
    assert main(["cache"]) == 0
    text = capsys.readouterr().out
    assert f"{folders[0]} (58 B of at most 2.0 GiB)" in text
    assert "aotautograd" in text


def test_clear_leaves_the_graphs_unless_told(folders, report):
    got = report("--clear")
    assert got["freed_bytes"] == 58
    assert got["kinds"]["spirv"] == {"entries": 0, "bytes": 0, "hits": 0, "misses": 0}
    assert got["graphs"]["fxgraph"]["entries"] == 1
    got = report("--clear", "--graphs")
    assert got["freed_bytes"] == 31
    assert [graph["entries"] for graph in got["graphs"].values()] == [0, 0]


def test_empty_folders(tmp_path, monkeypatch, report):
    monkeypatch.setenv("VKINDUCTOR_CACHE_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "none either"))
    assert report("--clear", "--graphs")["freed_bytes"] == 0
    assert not (tmp_path / "none").exists()


def test_export_and_import(folders, report, tmp_path, monkeypatch):
    file = tmp_path / "cache.tar"
    assert report("--export", str(file))["exported"] == {"entries": 2, "graphs": 2, "bytes": 89, "file": str(file)}
    before = report()
    monkeypatch.setenv("VKINDUCTOR_CACHE_DIR", str(tmp_path / "vk2"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor2"))
    got = report("--import", str(file))
    assert got["imported"] == {"entries": 2, "graphs": 2, "bytes": 89, "file": str(file)}
    assert got["graphs"] == before["graphs"]
    assert DiskStore(tmp_path / "vk2").get("spirv", "key") == b"1234"
    assert report("--import", str(file))["imported"]["entries"] == 0  # they are here already


def test_the_same_cache_packs_to_the_same_bytes(folders, report, tmp_path):
    one, two = tmp_path / "one.tar", tmp_path / "two.tar"
    report("--export", str(one))
    report("--export", str(two))
    assert one.read_bytes() == two.read_bytes()


def evil(file: Path, name: str, kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(file, "w") as archive:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "target"
        archive.addfile(info)
    return file


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../../up", tarfile.REGTYPE),
        ("vkinductor/../up", tarfile.REGTYPE),
        ("vkinductor/spirv/00/" + "0" * 62, tarfile.REGTYPE),
        ("inductor/fxgraph/../../up", tarfile.REGTYPE),
        ("inductor/fxgraph/ab/cd/" + "e" * 52, tarfile.REGTYPE),
        ("inductor/fxgraph/ab/cd/entry", tarfile.SYMTYPE),
    ],
)
def test_a_bad_archive_is_refused(folders, tmp_path, capsys, name, kind):
    assert main(["cache", "--import", str(evil(tmp_path / "evil.tar", name, kind))]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "up").exists()


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_no_archive(folders, tmp_path, capsys, content):
    file = tmp_path / "file.tar"
    file.write_bytes(content)
    assert main(["cache", "--import", str(file)]) == 1
    assert f"error: {file} cannot be unpacked" in capsys.readouterr().err


def test_mistakes(folders, tmp_path, capsys, monkeypatch):
    assert main(["cache", "--graphs"]) == 2
    assert main(["cache", "--import", str(tmp_path / "nowhere.tar")]) == 1
    assert main(["cache", "--export", str(tmp_path / "no folder" / "x.tar")]) == 1
    monkeypatch.setenv("VKINDUCTOR_CACHE_LIMIT", "much")
    assert main(["cache"]) == 1
    assert "VKINDUCTOR_CACHE_LIMIT" in capsys.readouterr().err


def test_a_folder_that_cannot_be_emptied(folders, capsys, monkeypatch):
    monkeypatch.setattr("vkinductor.runtime.store._remove", lambda path: False)
    assert main(["cache", "--clear"]) == 1
    assert "2 entries" in capsys.readouterr().err


def test_a_graph_that_was_compiled_is_counted(tmp_path, monkeypatch, report, fresh_device):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    fresh_device(VKINDUCTOR_CACHE_DIR=str(tmp_path / "vk"))
    torch._dynamo.reset()
    torch.compile(lambda x: x.sin() + 0.8125, backend="vulkan")(torch.ones(3))
    got = report()
    assert got["kinds"]["spirv"]["entries"] == 1
    assert got["graphs"]["fxgraph"]["entries"] == got["graphs"]["aotautograd"]["entries"] == 1
    torch._dynamo.reset()
