"""The disk store under abuse: a thousand damaged files, processes that are killed in the middle of a write."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import vkinductor
from vkinductor.runtime.store import KINDS, DiskStore

DAMAGES = 942  # tests/backend/test_cache_damage.py does sixty more from end to end
KEYS = 24
PROCESSES = 8
KILLS = 50


def damage(path: Path, others: list[Path], rng: random.Random) -> str:
    """Do one random thing to a cache file; returns what was done."""
    content = path.read_bytes()
    how = rng.choice(["truncate", "flip", "zeros", "empty", "foreign", "another entry", "append", "missing", "folder"])
    if how == "truncate":
        path.write_bytes(content[: rng.randrange(len(content))])
    elif how == "flip":
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(damaged))
    elif how == "zeros":  # what a file system leaves after a power cut
        path.write_bytes(bytes(len(content)))
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "foreign":
        path.write_bytes(rng.randbytes(rng.randrange(200)))
    elif how == "another entry":
        path.write_bytes(rng.choice(others).read_bytes())
    elif how == "append":
        path.write_bytes(content + rng.randbytes(rng.randint(1, 40)))
    else:
        path.unlink()
        if how == "folder":
            path.mkdir()
    return how


@pytest.mark.parametrize("seed", range(3))
def test_random_damage_is_a_miss_and_heals(tmp_path, seed):
    rng = random.Random(seed)
    store = DiskStore(tmp_path)
    values = {(kind, str(i)): rng.randbytes(rng.choice([0, 1, 30, 5000])) for kind in KINDS for i in range(KEYS // 3)}
    for (kind, key), value in values.items():
        store.put(kind, key, value)
    paths = {entry: store._path(*entry) for entry in values}
    for _ in range(DAMAGES // 3):
        entry = rng.choice(list(values))
        how = damage(paths[entry], [p for e, p in paths.items() if e != entry and p.is_file()], rng)
        reader = rng.choice([store, DiskStore(tmp_path)])
        got = reader.get(*entry)
        # Flips may cancel each other out, and then nothing has happened.
        assert got in (None, values[entry]), how
        if got is None:
            store.put(*entry, values[entry])
        assert DiskStore(tmp_path).get(*entry) == values[entry], how
    for entry, value in values.items():
        assert store.get(*entry) == value
    assert store._writable


WORKER = """
import random, sys, types
sys.modules["vkinductor"] = types.ModuleType("vkinductor")
sys.modules["vkinductor"].__path__ = [{package!r}]
from vkinductor.runtime.store import DiskStore
rng = random.Random()
store = DiskStore({root!r}, limit_bytes=400_000)
for _ in range({rounds}):
    key = str(rng.randrange(40))
    wanted = key.encode() * 20_000
    got = store.get("spirv", key)
    assert got in (None, wanted), "torn"
    store.put("spirv", key, wanted)
    got = store.get("spirv", key)
    assert got in (None, wanted), "torn"
assert store._writable, "a write failed"
"""


def test_processes_that_are_killed_leave_nothing_torn(tmp_path):
    """Eight processes write at once; one of them is killed at a random moment, fifty times."""
    rng = random.Random(0)
    package = os.path.dirname(vkinductor.__file__)
    endless = WORKER.format(package=package, root=str(tmp_path), rounds=10**9)

    def start(code: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-W", "error", "-c", code], stderr=subprocess.PIPE)

    running = [start(endless) for _ in range(PROCESSES)]
    try:
        time.sleep(1.0)
        for _ in range(KILLS):
            time.sleep(rng.uniform(0.02, 0.15))
            victim = running.pop(rng.randrange(len(running)))
            assert victim.poll() is None, victim.stderr and victim.stderr.read().decode()
            victim.send_signal(signal.SIGKILL)
            victim.communicate()
            running.append(start(endless))
        assert all(process.poll() is None for process in running)
    finally:
        for process in running:
            process.kill()
            process.communicate()
    last = start(WORKER.format(package=package, root=str(tmp_path), rounds=100))
    assert last.communicate(timeout=60)[1] == b""
    assert last.returncode == 0
    # What is left of killed writers is no entry, and is gone an hour later.
    left = list(tmp_path.rglob(".tmp-*"))
    for path in left:
        os.utime(path, times=(time.time() - 10_000,) * 2)
    stats = DiskStore(tmp_path).stats()
    assert stats["spirv"].bytes <= 400_000
    assert not list(tmp_path.rglob(".tmp-*"))
