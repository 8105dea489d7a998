"""`options={"trace": path}`: a Chrome trace of the calls' kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vkinductor.backend import settings, valid_options
from vkinductor.device import trace_file
from vkinductor.device.registry import registry


@pytest.fixture(autouse=True)
def timestamps() -> None:
    """What the option needs."""
    if not registry.open().runtime.info.limits.timestamp_valid_bits:
        pytest.skip("no timestamps")


def f(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).softmax(0) @ x


def kernels(path: Path) -> list[dict[str, Any]]:
    """The kernels in a file."""
    return [e for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") == "kernel"]


@pytest.mark.parametrize("where", ["cpu", "vulkan"])
def test_each_call_adds_its_kernels(tmp_path: Path, where: str) -> None:
    path = tmp_path / "trace.json"
    x = torch.randn(32, 32, device=where)
    compiled = torch.compile(f, backend="vulkan", fullgraph=True, options={"trace": str(path)})
    torch.testing.assert_close(compiled(x).cpu(), f(x).cpu(), atol=1e-4, rtol=1e-4)
    first = kernels(path)
    assert first
    assert registry.open().stream.tracer is None
    for calls in range(2, 5):  # a recording would be replayed by now
        compiled(x)
        assert len(kernels(path)) == calls * len(first)
    names = [e["name"] for e in kernels(path)]
    assert names == [e["name"] for e in first] * 4
    begins = [e["ts"] for e in kernels(path)]
    assert begins == sorted(begins)
    assert all(e["dur"] >= 0 for e in first)
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


def test_a_backward_runs_outside_the_calls(tmp_path: Path, train: Any) -> None:
    path = tmp_path / "trace.json"
    train(torch.nn.Linear(8, 8), lambda: (torch.randn(4, 8, requires_grad=True),), 2, options={"trace": str(path)})
    per_call = len(kernels(path)) / 2
    model, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    forward = tmp_path / "forward.json"
    with torch.no_grad():
        torch.compile(model, backend="vulkan", options={"trace": str(forward)})(x)
    assert per_call == len(kernels(forward)) > 0


def test_within_a_profile(tmp_path: Path) -> None:
    path, exported = tmp_path / "trace.json", tmp_path / "profile.json"
    compiled = torch.compile(f, backend="vulkan", options={"trace": str(path)})
    x = torch.randn(16, 16)
    compiled(x)
    with torch.profiler.profile() as profile:
        compiled(x)
    profile.export_chrome_trace(str(exported))
    names = [e["name"] for e in kernels(path)]
    assert [e["name"] for e in kernels(exported)] == names[len(names) // 2 :]


def test_graphs_around_a_break_write_one_file(tmp_path: Path) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y.sum(0)

    path = tmp_path / "trace.json"
    torch.compile(broken, backend="vulkan", options={"trace": str(path)})(torch.randn(64, 64))
    assert len(kernels(path)) >= 2


def test_a_file_holds_the_last_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "LIMIT", 3)
    path = tmp_path / "trace.json"
    compiled = torch.compile(f, backend="vulkan", options={"trace": str(path)})
    x = torch.randn(16, 16)
    for _ in range(4):
        compiled(x)
    assert 0 < len(kernels(path)) <= 3


def test_a_failing_call_ends_its_trace(tmp_path: Path) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("on purpose")

    graph = trace_file.TracedGraph(fails, trace_file.trace_file(str(tmp_path / "trace.json")))
    with pytest.raises(RuntimeError, match="on purpose"):
        graph()
    assert registry.open().stream.tracer is None


@pytest.mark.parametrize("value", [3, None, "", True])
def test_not_a_path(value: Any) -> None:
    with pytest.raises(ValueError, match=r"'trace' .* takes the path"):
        torch.compile(f, backend="vulkan", options={"trace": value})(torch.randn(3, 3))


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        settings(None, {"trace": str(tmp_path / "none" / "trace.json")})


def test_it_is_listed_and_no_setting_of_inductor(tmp_path: Path) -> None:
    assert "trace" in valid_options()
    assert settings(None, {"trace": str(tmp_path / "t.json")}) == settings(None, None)
