"""Inductor's graph caches on disk: a second process compiles nothing, another device or another version does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, torch, vkinductor
from torch._dynamo.utils import counters
m = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
with torch.no_grad():
    for p in m.parameters():
        p.fill_(0.5)
compiled = torch.compile(m, backend="vulkan", dynamic={dynamic})
x = torch.ones(3, 4)
loss = compiled(x).sum()
loss.backward()
y = (torch.ones(3, device="vulkan") * 2.5).sum().item()
print(json.dumps({{
    "loss": loss.item(), "grad": m[0].weight.grad.sum().item(), "eager": y, "expected": m(x).sum().item(),
    "aot": dict(counters["aot_autograd"]), "inductor": dict(counters["inductor"]),
    "kernels": vkinductor.stats()["kernels_compiled"], "fallbacks": vkinductor.stats()["fallbacks"],
}}))
"""


def run(folder: Path, dynamic: bool = False, **environment: str) -> dict:
    import json

    root = Path(__file__).parents[2]
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "VKINDUCTOR_CACHE_DIR": str(folder / "vk")}
    env = {**os.environ, **caches, **environment}
    env["PYTHONPATH"] = os.pathsep.join([str(root), env.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(dynamic=dynamic)], env=env, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout.splitlines()[-1])
    assert outcome["loss"] == pytest.approx(outcome["expected"])
    assert outcome["eager"] == 7.5
    assert outcome["fallbacks"] == {}
    return outcome


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    first = run(tmp_path)
    assert first["kernels"] > 0
    assert first["aot"].get("autograd_cache_miss") == 1
    second = run(tmp_path)
    assert second["aot"].get("autograd_cache_hit") == 1
    assert second["aot"].get("autograd_cache_miss", 0) == 0
    assert second["inductor"].get("fxgraph_cache_miss", 0) == 0  # the eager operators too
    assert second["kernels"] == 0
    assert second["grad"] == first["grad"]
    # A device with other limits is another device.
    third = run(tmp_path, VKINDUCTOR_LIMITS="max_shared_memory=16384")
    assert third["aot"].get("autograd_cache_miss") == 1


def test_identity_of_the_code_and_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    from vkinductor.codegen.cache_key import CacheKey, device_version
    from vkinductor.runtime import context

    device = context.get()
    key = CacheKey().uuid()
    assert key == CacheKey().uuid()
    assert device_version() in key
    monkeypatch.setattr(device, "info", dataclasses.replace(device.info, uuid="0" * 32))
    assert CacheKey().uuid() != key
