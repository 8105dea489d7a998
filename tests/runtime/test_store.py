"""The disk store: what is put is got, whatever happens to the disk meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings

import pytest

from vkinductor.runtime.errors import CacheError
from vkinductor.runtime.store import DiskStore

HEADER = 24


def entries(root):
    return sorted(path for path in root.rglob("*") if path.is_file())


@pytest.fixture
def store(tmp_path):
    return DiskStore(tmp_path / "cache")


def test_what_is_put_is_got(store):
    assert store.get("spirv", "a") is None
    store.put("spirv", "a", b"one")
    store.put("spirv", "b", b"")
    assert store.get("spirv", "a") == b"one"
    assert store.get("spirv", "b") == b""
    store.put("spirv", "a", b"two")
    assert store.get("spirv", "a") == b"two"


def test_kinds_are_apart(store):
    store.put("spirv", "key", b"code")
    assert store.get("pipeline", "key") is None


def test_another_process_sees_it(store, tmp_path):
    store.put("tuning", "key", b"value")
    assert DiskStore(tmp_path / "cache").get("tuning", "key") == b"value"


def test_nothing_is_touched_before_the_first_use(tmp_path):
    DiskStore(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_stats(store):
    store.put("spirv", "a", b"12345")
    store.get("spirv", "a")
    store.get("spirv", "lost")
    store.get("pipeline", "lost")
    stats = store.stats()
    assert list(stats) == ["spirv", "pipeline", "tuning"]
    assert (stats["spirv"].hits, stats["spirv"].misses, stats["spirv"].entries) == (1, 1, 1)
    assert stats["spirv"].bytes == HEADER + 5
    assert (stats["pipeline"].misses, stats["tuning"].misses) == (1, 0)


def test_clear(store):
    store.put("spirv", "a", b"12345")
    store.get("spirv", "a")
    assert store.clear() == HEADER + 5
    assert store.get("spirv", "a") is None
    assert store.stats()["spirv"].hits == 0


def test_clear_leaves_strange_files(store, tmp_path):
    store.put("spirv", "a", b"1")
    strange = tmp_path / "cache" / "spirv" / "notes.txt"
    strange.write_text("mine")
    store.clear()
    assert strange.read_text() == "mine"


def test_a_bad_kind_is_a_bug(store):
    for call in (lambda: store.get("../up", "a"), lambda: store.put("Spirv", "a", b"")):
        with pytest.raises(ValueError, match="no kind"):
            call()


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign", "longer"])
def test_damage_is_a_miss_and_heals(store, tmp_path, damage):
    store.put("spirv", "a", b"payload")
    (path,) = entries(tmp_path)
    content = path.read_bytes()
    path.write_bytes(
        {
            "cut": content[:-1],
            "flip": content[:-1] + bytes([content[-1] ^ 1]),
            "empty": b"",
            "foreign": b"something else entirely, and longer than a header",
            "longer": content + b"x",
        }[damage]
    )
    assert store.get("spirv", "a") is None
    store.put("spirv", "a", b"payload")
    assert store.get("spirv", "a") == b"payload"


def test_a_folder_in_place_of_an_entry_is_a_miss_and_heals(store, tmp_path):
    store.put("spirv", "a", b"payload")
    (path,) = entries(tmp_path)
    path.unlink()
    path.mkdir()
    assert store.get("spirv", "a") is None
    store.put("spirv", "a", b"payload")
    assert DiskStore(tmp_path / "cache").get("spirv", "a") == b"payload"


def test_an_entry_in_the_place_of_another_is_a_miss(store, tmp_path):
    store.put("spirv", "a", b"one")
    store.put("pipeline", "a", b"two")
    first, second = store._path("spirv", "a"), store._path("pipeline", "a")
    second.write_bytes(first.read_bytes())
    assert store.get("pipeline", "a") is None
    assert store.get("spirv", "a") == b"one"


def test_the_least_recently_used_goes_first(tmp_path):
    store = DiskStore(tmp_path, limit_bytes=10 * (HEADER + 100))
    for i in range(10):
        store.put("spirv", str(i), bytes(100))
    assert store.stats()["spirv"].entries == 10
    for age, path in enumerate(sorted(entries(tmp_path), key=lambda p: p.stat().st_mtime_ns)):
        os.utime(path, times=(time.time() - 10000 + age,) * 2)
    by_age = {path: path.stat().st_mtime for path in entries(tmp_path)}
    oldest = min(by_age, key=by_age.__getitem__)
    key = next(str(i) for i in range(10) if store._path("spirv", str(i)) == oldest)
    assert store.get("spirv", key) is not None  # now it is the newest
    store.put("spirv", "new", bytes(100))
    assert store.stats()["spirv"].bytes <= 10 * (HEADER + 100)
    assert store.get("spirv", key) is not None
    assert store.get("spirv", "new") is not None


def test_the_limit_holds_over_many_writes(tmp_path):
    limit = 20_000
    store = DiskStore(tmp_path, limit_bytes=limit)
    for i in range(300):
        store.put("spirv", str(i), bytes(500))
        assert sum(path.stat().st_size for path in entries(tmp_path)) <= limit
    assert store.get("spirv", "299") is not None


def test_what_other_processes_write_counts(tmp_path):
    ours, theirs = (DiskStore(tmp_path, limit_bytes=20_000) for _ in range(2))
    ours.put("spirv", "first", bytes(100))
    for i in range(40):
        theirs.put("spirv", f"theirs {i}", bytes(400))
    for i in range(300):
        ours.put("spirv", f"ours {i}", bytes(10))
    assert sum(path.stat().st_size for path in entries(tmp_path)) <= 20_000


def test_an_entry_over_the_limit_is_not_stored(tmp_path):
    store = DiskStore(tmp_path, limit_bytes=1000)
    store.put("spirv", "small", bytes(100))
    store.put("spirv", "large", bytes(1000))
    assert store.get("spirv", "large") is None
    assert store.get("spirv", "small") is not None


def test_a_hit_renews_an_old_entry_only(store, tmp_path):
    store.put("spirv", "a", b"1")
    (path,) = entries(tmp_path)
    fresh = path.stat().st_mtime_ns
    store.get("spirv", "a")
    assert path.stat().st_mtime_ns == fresh
    os.utime(path, times=(time.time() - 1000,) * 2)
    store.get("spirv", "a")
    assert time.time() - path.stat().st_mtime < 100


def test_temporary_files_are_swept(tmp_path):
    store = DiskStore(tmp_path)
    store.put("spirv", "a", b"1")
    folder = entries(tmp_path)[0].parent
    old, young = folder / ".tmp-old", folder / ".tmp-young"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, times=(time.time() - 10000,) * 2)
    store.stats()
    assert not old.exists()
    assert young.exists()


def blocked(tmp_path):
    """A store whose root cannot be a folder, for root as for anybody: a file is in its place."""
    (tmp_path / "file").write_text("in the way")
    return DiskStore(tmp_path / "file" / "cache", limit_bytes=1000)


def test_a_disk_that_cannot_be_written_warns_once_and_memory_serves(tmp_path):
    store = blocked(tmp_path)
    with pytest.warns(RuntimeWarning, match="VKINDUCTOR_CACHE_DIR"):
        store.put("spirv", "a", b"one")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.put("spirv", "b", b"two")
        assert store.get("spirv", "a") == b"one"
        assert store.get("spirv", "b") == b"two"
    assert store.stats()["spirv"].entries == 2
    assert store.clear() == 6
    assert store.get("spirv", "a") is None


def test_a_full_disk_is_the_same(store, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    store.put("spirv", "before", b"0")
    monkeypatch.setattr("tempfile.mkstemp", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        store.put("spirv", "a", b"one")
    assert store.get("spirv", "a") == b"one"
    assert store.get("spirv", "before") == b"0"


def test_a_write_that_fails_leaves_nothing(store, tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.warns(RuntimeWarning, match="Input/output"):
        store.put("spirv", "a", b"one")
    assert entries(tmp_path) == []


def test_memory_only():
    store = DiskStore(None, limit_bytes=100)
    for i in range(10):
        store.put("spirv", str(i), bytes(30))
    assert store.get("spirv", "0") is None
    assert store.get("spirv", "9") == bytes(30)
    assert store.stats()["spirv"].bytes <= 100


def test_threads(store):
    failures = []

    def work(n: int) -> None:
        for i in range(20):
            key = str(i % 5)
            store.put("spirv", key, key.encode() * 1000)
            got = store.get("spirv", key)
            if got != key.encode() * 1000:
                failures.append((n, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


WRITER = """
import sys, types
sys.modules["vkinductor"] = types.ModuleType("vkinductor")
sys.modules["vkinductor"].__path__ = [{package!r}]
from vkinductor.runtime.store import DiskStore
store = DiskStore({root!r}, limit_bytes=30_000)
for i in range(150):
    key = str(i % 40)
    store.put("spirv", key, key.encode() * 500)
    got = store.get("spirv", key)
    assert got in (None, key.encode() * 500), "torn"
assert not store._memory, "a write failed"
"""


def test_processes_write_and_evict_together(tmp_path):
    """No torn entry is ever read and no process fails while all write the same keys and evict each other's."""
    import vkinductor

    package = os.path.dirname(vkinductor.__file__)
    code = WRITER.format(package=package, root=str(tmp_path))
    running = [subprocess.Popen([sys.executable, "-W", "error", "-c", code]) for _ in range(3)]
    assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    assert not [path for path in entries(tmp_path) if path.name.startswith(".tmp-")]


def test_use_is_summed_over_processes(store, tmp_path):
    assert store.use()["spirv"] == (0, 0)
    store.put("spirv", "a", b"1")
    store.get("spirv", "a")
    store.get("pipeline", "lost")
    store.record_use()
    store.record_use()  # nothing new
    store.get("spirv", "a")
    store.record_use()
    other = DiskStore(tmp_path / "cache")
    other.get("spirv", "a")
    other.record_use()
    with (tmp_path / "cache" / "use.txt").open("ab") as file:
        file.write(b"\xff nonsense\nspirv -1 x\n")
    assert store.use() == {"spirv": (3, 0), "pipeline": (0, 1), "tuning": (0, 0)}
    store.clear()
    assert store.use()["spirv"] == (0, 0)


def test_the_file_of_counts_does_not_grow_for_ever(store, tmp_path, monkeypatch):
    monkeypatch.setattr("vkinductor.runtime.store._USE_BYTES", 100)
    store.put("spirv", "a", b"1")
    for _ in range(50):
        store.get("spirv", "a")
        store.record_use()
    assert store.use()["spirv"] == (50, 0)
    assert (tmp_path / "cache" / "use.txt").stat().st_size < 200


def test_entries_go_from_store_to_store(store, tmp_path):
    store.put("spirv", "a", b"one")
    store.put("tuning", "b", b"two")
    other = DiskStore(tmp_path / "other")
    exported = list(store.export())
    assert [other.adopt(*entry) for entry in exported] == [True, True]
    assert [other.adopt(*entry) for entry in exported] == [False, False]
    assert (other.get("spirv", "a"), other.get("tuning", "b")) == (b"one", b"two")


@pytest.mark.parametrize("name", ["../../up", "spirv/ab/cd", "spirv/00/" + "0" * 62, ""])
def test_what_is_no_entry_is_not_adopted(store, name):
    with pytest.raises(CacheError, match="no sound entry"):
        store.adopt(name, b"vkstore2" + bytes(30))
