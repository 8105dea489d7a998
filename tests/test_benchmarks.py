"""The benchmarks run: what they count is what they say, and a table holds what failed too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import vkinductor

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def overhead(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, by its name in the repository."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import overhead as module

    return module


def test_floors_are_chains_of_200_dependent_dispatches(overhead: Any) -> None:
    recorded, single = overhead.floors(0.01)
    for row in (recorded, single):
        assert row.kernels == overhead.CHAIN
        assert row.counts["barriers"] == pytest.approx(overhead.CHAIN, abs=1)
        assert "allocations" not in row.counts
    assert recorded.counts["submits"] == recorded.counts["replays"] == 1
    assert single.device is None or single.device > 0


def test_a_graphs_own_dispatches_are_the_floor_beside_it(overhead: Any) -> None:
    torch._dynamo.reset()
    shown: list[Any] = []
    workloads = overhead.workloads
    with pytest.MonkeyPatch.context() as patch:
        chain = f"{overhead.CHAIN} kernels"
        patch.setattr(overhead, "workloads", lambda *a: {chain: workloads(*a)[chain]})
        overhead.rows(overhead.RECORDED, overhead.systems()[overhead.RECORDED], 0.01, shown.append)
    graph, floor = shown
    assert not graph.note
    assert graph.kernels == floor.kernels == overhead.CHAIN
    assert graph.counts["submits"] == floor.counts["submits"] == 1
    assert "allocations" not in graph.counts


def test_what_fails_is_a_row_with_the_reason(overhead: Any) -> None:
    def refuse(_: Any) -> Any:
        raise ValueError("first\nlast")

    shown: list[Any] = []
    overhead.rows("broken", ("cpu", refuse, lambda: None), 0.01, shown.append)
    assert {row.note for row in shown} == {"ValueError: first ... last"}


def test_the_peers_process_leaves_the_device_alone(overhead: Any, tmp_path: Path) -> None:
    """torch has one accelerator a process: with ours registered, CUDA's backward fails inside torch."""
    path = tmp_path / "rows.json"
    line = [sys.executable, "-X", "importtime", "-m", "benchmarks.overhead", "--cuda", "0.01", "--json", str(path)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # there would be a whole benchmark to wait for
    result = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "benchmarks.measure" in imported
    assert "vkinductor" not in imported


def test_the_chain_is_one_kernel_a_step(overhead: Any) -> None:
    """Nothing of it may fuse, or the table would compare calls of different numbers of kernels."""
    torch._dynamo.reset()
    x = torch.randn(16, 16, device="vulkan")
    compiled = torch.compile(overhead.chain, backend="vulkan")
    compiled(x)
    vkinductor.reset_stats()
    compiled(x)
    assert vkinductor.stats()["dispatches"] == overhead.CHAIN


def test_tables_and_files(overhead: Any, tmp_path: Path) -> None:
    row = overhead.Row
    rows = [
        row("w", "first", 10.0, 20.0, 30.0, kernels=5, counts={"submits": 1.0}),
        row("w", "second", 1.0, 40.0, 30.0, device=7.0),
        row("w", "third", note="no such card"),
    ]
    lines = overhead.table(rows).splitlines()
    assert len(lines) == 4
    assert " 2.00 " in lines[1]  # host time a kernel
    assert "submits 1" in lines[1]
    assert " 2.00 " in lines[2]  # wall time to the first row's
    assert "no such card" in lines[3]
    overhead.save(str(tmp_path / "r.json"), rows, torch="x")
    saved = json.loads((tmp_path / "r.json").read_text())
    assert [r["system"] for r in saved["rows"]] == ["first", "second", "third"]
    assert overhead.load(str(tmp_path / "r.json")) == rows
    assert saved["torch"] == "x"


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package's modules by name."""
    monkeypatch.syspath_prepend(str(ROOT))
    import importlib

    return lambda name: importlib.import_module(f"benchmarks.{name}")


def test_cases_have_names_of_their_own(speed: Any) -> None:
    main = speed("__main__")
    for quick in (False, True):
        keys = [case.key for case in main.selected(list(main.MODULES), "", quick)]
        assert len(set(keys)) == len(keys) > 100
    assert all("softmax" in case.key for case in main.selected(["norms"], "softmax", True))


def test_a_case_runs_on_other_data_each_time_and_a_failure_is_a_result(speed: Any) -> None:
    cases, devices, main = speed("cases"), speed("devices"), speed("__main__")
    seen: list[int] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.data_ptr())
        return x + 1

    class Host(devices.System):
        name, device = "host", "cpu"

        def synchronize(self) -> None: ...

        def span(self, record: Any, host: float) -> float:
            record()
            return 30.0

        def about(self) -> dict[str, str]:
            return {}

    def fails(x: torch.Tensor) -> None:
        raise ValueError("no such thing")

    def inputs(device: str) -> list[torch.Tensor]:
        return [torch.zeros(1 << 24, device=device)]

    good = cases.Case("g", "good", function, inputs, nbytes=2.0 * (1 << 26))
    bad = cases.Case("g", "bad", fails, inputs, nbytes=1.0)
    right, wrong = main.run(Host(), [good, bad], 0.001)
    assert right.us is not None
    assert len(set(seen)) == 4  # 256 MB of them
    assert wrong.us is None
    assert wrong.note == "ValueError: no such thing"


def test_what_is_compiled_ahead_is_not_compiled_again(speed: Any) -> None:
    """Each case has code of its own: Dynamo keeps what it compiled by the code."""
    cases, devices, main = speed("cases"), speed("devices"), speed("__main__")
    compiled: list[Any] = []

    class Host(devices.System):
        name, device = "host", "cpu"

        def compile(self, function: Any) -> Any:
            compiled.append(function.__code__)
            return function

        def synchronize(self) -> None: ...

        def span(self, record: Any, host: float) -> float:
            return 30.0

        def about(self) -> dict[str, str]:
            return {}

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def case(function: Any, n: int) -> Any:
        return cases.Case("g", f"{n}", function, lambda device: [torch.zeros(n, device=device)], nbytes=1.0)

    some = [case(double, 1), case(double, 2), case(torch.neg, 3), case(torch.neg, 4)]
    host = Host()
    ways = main.prepare(host, some)
    results = [*main.run(host, some, 0.001, ways)]
    assert all(r.us for r in results)
    assert len(compiled) == len({id(code) for code in compiled}) == len({code.co_name for code in compiled}) == 4


def test_shares_are_timed_when_all_have_compiled(speed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    main, log = speed("__main__"), []
    child = """
import json, sys
print("ready", flush=True)
if not sys.stdin.readline(): sys.exit(1)
row = dict(case="a", system="s", us=1.0, nbytes=1, flops=0, targets={}, note="")
print(json.dumps({"about": {}}))
print(json.dumps({"result": row}))
if sys.argv[1] == "1": sys.exit(3)
print(json.dumps({"done": True}))
"""

    def start(arguments: Any, system: str, part: int = 0, parts: int = 1) -> Any:
        log.append((system, part, parts))
        line = [sys.executable, "-c", child, str(part)]
        return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(main, "start", start)
    told = [*main.collect(main.argparse.Namespace(ahead=2), ["ours", "peer"])]
    assert log == [("ours", 0, 2), ("peer", 0, 2), ("ours", 1, 2), ("peer", 1, 2)]
    notes = [(system, line["result"]["note"]) for system, line in told if "result" in line]
    ended = "the process ended"
    assert notes == [("ours", ""), ("peer", ""), ("ours", ""), ("ours", ended), ("peer", ""), ("peer", ended)]


def test_gradients_alone_are_timed(speed: Any) -> None:
    cases = speed("cases")
    x = torch.ones(3, requires_grad=True)
    case = cases.Case("g", "b", lambda x: x * 2, lambda device: [x], nbytes=1.0, backward=True)
    (call, *_) = case.calls(lambda f: f, "cpu")
    (gradient,) = call()
    assert gradient.shape == (3,)
    assert x.grad is None


def test_ratios_targets_and_files(speed: Any, tmp_path: Path) -> None:
    cases = speed("cases")
    ours, peer = speed("devices").OURS, "peer"
    goals = {peer: 1.5, "ceiling": 0.9}
    results = [
        cases.Result("ceiling: copy 512 MB", ours, 100.0, 1e8, 0, {}),
        cases.Result("a", ours, 10.0, 8e6, 0, goals),
        cases.Result("a", peer, 20.0, 8e6, 0, goals),
        cases.Result("b", ours, None, 1.0, 0, {}, "refused"),
    ]
    assert cases.ratios(results)["a"] == {"ceiling": pytest.approx(0.8), peer: 2.0}
    text = cases.table(results)
    assert "peer 1.5: met" in text
    assert "ceiling 0.9: missed" in text
    assert "refused" in text
    cases.write(tmp_path / "r.json", results, {ours: {"device": "x"}})
    assert cases.read(tmp_path / "r.json") == (results, {ours: {"device": "x"}})


def test_all_benchmarks_run_unless_some_are_named(speed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    main, asked = speed("__main__"), []
    monkeypatch.setattr(main, "available", lambda: ["a system"])
    monkeypatch.setattr(main, "collect", lambda arguments, systems: asked.append(arguments.modules) or [])
    assert main.main([]) == main.main(["norms"]) == 0
    assert asked == [list(main.MODULES), ["norms"]]
    with pytest.raises(SystemExit):
        main.main(["nothing"])


def test_peers_that_are_not_there_are_absent_and_ours_is_measured(speed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that does not exist, and one without the package; the process of ours answers."""
    peers = speed("peers.__main__")
    monkeypatch.delenv(peers.VARIABLE, raising=False)
    pythons = {"iree": "no-such-python", "torchvulkan": sys.executable}
    monkeypatch.setitem(peers.PEERS, "torchvulkan", "no_such_adapter")
    rows, about = peers.run(pythons, ["matmul 512x512x512"], rounds=2)
    found = {row.system: row for row in rows}
    ours = found.pop(peers.OURS)
    assert not ours.note
    assert len(ours.wall) == len(ours.cpu) == 2
    assert ours.error < 1e-5
    assert set(found) == set(peers.PEERS)
    assert all(row.note.startswith("absent") and not row.wall for row in found.values())
    assert about["iree"].startswith("absent")
    text = peers.table(rows)
    assert f"| {peers.OURS} |" in text
    assert text.count("absent") == len(found)


def test_a_peers_wrong_result_and_end_are_said(speed: Any) -> None:
    peers = speed("peers.__main__")

    class Fake:
        note = about = ""

        def __init__(self, system: str, *answers: dict[str, Any]) -> None:
            self.system, self.answers = system, list(answers)

        def ask(self, **command: Any) -> dict[str, Any]:
            return self.answers.pop(0)

    wrong = Fake("wrong", {"error": 0.5})
    ended = Fake("ended", {"error": 0.0}, {"failed": "the process ended"}, {"failed": "the process ended"})
    good = Fake(peers.OURS, {"error": 0.0}, {"wall": 1.0, "cpu": 2.0}, {"wall": 3.0, "cpu": 2.0})
    rows = {row.system: row for row in peers.turns([wrong, ended, good], "p", rounds=2)}
    assert rows["wrong"].note == "wrong"
    assert rows["ended"].note == "the process ended"
    assert rows[peers.OURS].wall == [1.0, 3.0]


def test_peers_are_named_by_option_or_environment(speed: Any) -> None:
    peers = speed("peers.__main__")
    assert peers.pythons_of(["iree=b"], "iree=a,ncnn=c") == {"iree": "b", "ncnn": "c"}
    with pytest.raises(ValueError, match="NAME=PYTHON"):
        peers.pythons_of(["nothing=a"], "")


def test_the_peers_problems_have_one_answer(speed: Any) -> None:
    """The encoder in torch, which torch's devices run, is the one in double precision."""
    import numpy as np

    problems, model = speed("peers.problems"), speed("peers.torch_model")
    arrays = problems.encoder_arrays(np.random.default_rng(0))
    result = model.Encoder(arrays)(torch.from_numpy(arrays["x"])[None])
    assert problems.error(result.numpy(), problems.encoder_result(arrays)) < 1e-5


def test_layers_of_a_step(speed: Any) -> None:
    """On the CPU, where weights in blocks are dequantised: as many finite results as there are layers."""
    cases = speed("__main__").selected(["layers"], "", True)
    assert len(cases) == 6
    torch.manual_seed(0)
    for case in cases:
        results = case.function(*case.inputs("cpu"))
        assert len(results) == case.inner * (1 if "gate" in case.name else 3)
        assert all(result.isfinite().all() and result.abs().max() > 0 for result in results)
