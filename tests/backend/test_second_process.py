"""A second process neither lowers a graph nor compiles a kernel, in whatever mode the first compiled it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = r"""
import json, itertools, torch, vkinductor
from torch._dynamo.utils import counters

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(6, 12), torch.nn.LayerNorm(12), torch.nn.Linear(12, 6)
        self.register_buffer("seen", torch.zeros(()))
    def forward(self, x):
        self.seen.add_(1)
        return x + self.down(torch.nn.functional.gelu(self.norm(self.up(x))))

seen = {}
for device, training, dynamic in itertools.product(("cpu", "vulkan"), (False, True), (False, True)):
    torch._dynamo.reset()
    counters.clear()
    before = vkinductor.stats()["kernels_compiled"]
    torch.manual_seed(0)
    plain, model = Block(), Block()
    model.load_state_dict(plain.state_dict())
    model = model.to(device)
    compiled = torch.compile(model, backend="vulkan", fullgraph=True, dynamic=dynamic)
    for rows in (3, 5) if dynamic else (3,):
        x = torch.randn(rows, 6)
        with torch.set_grad_enabled(training):
            y, expected = compiled(x.to(device)), plain(x)
            torch.testing.assert_close(y.cpu(), expected)
            if training:
                y.square().sum().backward()
                expected.square().sum().backward()
    if training:
        torch.testing.assert_close(model.up.weight.grad.cpu(), plain.up.weight.grad)
    assert model.seen.item() == (2 if dynamic else 1)
    total = counters["inductor"] + counters["aot_autograd"]
    total["kernels"] = vkinductor.stats()["kernels_compiled"] - before
    seen[f"{device} {training=} {dynamic=}"] = total
counters.clear()
before = vkinductor.stats()["kernels_compiled"]
a, b = torch.randn(4, 6).to("vulkan"), torch.randn(6, 5).to("vulkan")
torch.mm(a, b), a.softmax(-1), a.add_(a, alpha=2), torch.cat([a, a]), a.argmax(1), a * 3.5, a * 4.5, a.sum(0)
torch.where(a > 0, a, a * 2), a.t().contiguous(), torch.nn.functional.layer_norm(a, (6,))
total = counters["inductor"] + counters["aot_autograd"]
total["kernels"] = vkinductor.stats()["kernels_compiled"] - before
seen["eager operators"] = total
print(json.dumps(seen))
"""


def run(folder: Path) -> dict[str, dict[str, Any]]:
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "VKINDUCTOR_CACHE_DIR": str(folder / "vk")}
    root = str(Path(__file__).parents[2])
    env = {**os.environ, **caches, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_no_lowering_and_no_compiling_in_any_mode(tmp_path: Path) -> None:
    first, second = run(tmp_path), run(tmp_path)
    assert sum(seen["kernels"] for seen in first.values()) > 20
    assert len(second) == 9
    for mode, seen in second.items():
        assert seen["kernels"] == 0, mode
        assert seen.get("fxgraph_cache_miss", 0) == seen.get("fxgraph_cache_bypass", 0) == 0, mode
        assert seen["fxgraph_cache_hit"] > 0, mode
        if mode == "eager operators":
            continue  # these go to Inductor's cache directly
        assert seen["autograd_cache_hit"] == 1, mode
        # dynamic=True makes inputs of a module's floats, such as the norm's eps; Dynamo sees while AOTAutograd traces
        # that it has to compile them in, and starts again. That first attempt is never cached.
        assert seen.get("autograd_cache_miss", 0) == ("dynamic=True" in mode), mode
