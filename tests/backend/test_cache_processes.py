"""Eight processes compile one model on empty caches while one is killed: a short run of tools/cache_stress.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the script forks")
def test_processes_compile_at_once_and_one_is_killed() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    line = [sys.executable, str(ROOT / "tools" / "cache_stress.py"), "--rounds", "1"]
    result = subprocess.run(line, env=env, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "results right" in result.stdout
