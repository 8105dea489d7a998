"""The disk store: bytes by kind and key, shared by all processes of a user.

Owns file names, checksums, atomic writes and eviction. Leaves to its callers what the bytes mean and what
belongs in a key (a compiler's version, a device's UUID): an entry is never checked against anything but its
own checksum, which covers the kind and the key, so that a file that was copied in its place is no entry.

The rules that callers may rely on:

* A store never makes a program fail. Whatever goes wrong in reading is a miss; whatever goes wrong in writing
  is said once, as a warning, and from then on entries are kept in memory.
* An entry appears whole or not at all: it is written to a temporary file of the same folder and renamed. Two
  processes that write one key both win; the file is one of the two.
* The total size stays under the limit: the entries that were used longest ago go first. Use is the file's
  modification time, which a hit renews.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import threading
import time
import warnings
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vkinductor.runtime.env import DEFAULT_CACHE_LIMIT

KINDS = ("spirv", "pipeline", "tuning")

_MAGIC = b"vkstore2"
_CHECKSUM_BYTES = 16
_HEADER_BYTES = len(_MAGIC) + _CHECKSUM_BYTES
_KIND_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TEMPORARY = ".tmp-"
_STALE_TEMPORARY_S = 3600
# A hit renews the file's time at most this often: LRU needs no finer clock, and a write for each read costs.
_RENEW_S = 60
# Eviction goes on to this part of the limit, so that it does not run again on the next write.
_EVICT_TO = 0.9
# Other processes write too: after this many writes of our own the folder is measured anew.
_REMEASURE_WRITES = 256


@dataclass(frozen=True)
class KindStats:
    """What one kind of entry has seen: `hits` and `misses` of this process, `entries` and `bytes` now
    stored."""

    hits: int = 0
    misses: int = 0
    entries: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class _File:
    path: Path
    kind: str
    nbytes: int
    used: float


class DiskStore:
    """A store under the folder `root`, at most `limit_bytes` large; `root=None` keeps everything in memory.

    Nothing is read or created before the first `get` or `put`. Safe for threads and for processes.
    """

    def __init__(self, root: str | os.PathLike[str] | None, limit_bytes: int = DEFAULT_CACHE_LIMIT) -> None:
        self.root = None if root is None else Path(root)
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._hits: Counter[str] = Counter()
        self._misses: Counter[str] = Counter()
        self._memory: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._memory_bytes = 0
        self._disk_bytes: int | None = None  # an estimate, None until the folder is measured
        self._writes = 0
        self._writable = root is not None

    def get(self, kind: str, key: str) -> bytes | None:
        """The bytes last put under `kind` and `key`, or None. Never raises for the state of the disk."""
        self._check_kind(kind)
        data = self._read(kind, key)
        with self._lock:
            if data is None:
                data = self._memory.get((kind, key))
            (self._misses if data is None else self._hits)[kind] += 1
        return data

    def put(self, kind: str, key: str, data: bytes) -> None:
        """Stores `data` under `kind` and `key`, over what was there. An entry larger than the limit is not
        stored."""
        self._check_kind(kind)
        if len(data) + _HEADER_BYTES > self.limit_bytes:
            return
        if self._writable:
            try:
                self._write(self._path(kind, key), _header(kind, key, data) + data)
            except OSError as error:
                self._stop_writing(error)
            else:
                self._evict_if_needed(len(data) + _HEADER_BYTES)
                return
        self._keep(kind, key, data)

    def _stop_writing(self, error: OSError) -> None:
        with self._lock:
            if not self._writable:  # another thread has said it
                return
            self._writable = False
        warnings.warn(
            f"the cache folder {self.root} cannot be written ({error}): what is compiled now lasts for this process "
            "only. Set VKINDUCTOR_CACHE_DIR to a folder that can be written.",
            RuntimeWarning,
            stacklevel=3,
        )

    def stats(self) -> dict[str, KindStats]:
        """Hits and misses of this process and what is stored now, by kind (all of `KINDS`, and others that
        were used)."""
        entries: Counter[str] = Counter()
        nbytes: Counter[str] = Counter()
        for file in self._files():
            entries[file.kind] += 1
            nbytes[file.kind] += file.nbytes
        with self._lock:
            for (kind, _), data in self._memory.items():
                entries[kind] += 1
                nbytes[kind] += len(data)
            kinds = dict.fromkeys([*KINDS, *sorted({*self._hits, *self._misses, *entries})])
            return {k: KindStats(self._hits[k], self._misses[k], entries[k], nbytes[k]) for k in kinds}

    def clear(self) -> int:
        """Removes every entry (of all processes) and the counts of this one; returns the bytes that were
        freed."""
        freed = sum(file.nbytes for file in self._files() if _remove(file.path))
        with self._lock:
            freed += self._memory_bytes
            self._memory.clear()
            self._memory_bytes = 0
            self._hits.clear()
            self._misses.clear()
            self._disk_bytes = None
        return freed

    def _check_kind(self, kind: str) -> None:
        if not _KIND_NAME.fullmatch(kind):
            raise ValueError(f"{kind!r} is no kind of cache entry: a lower-case word is wanted, such as {KINDS}")

    def _path(self, kind: str, key: str) -> Path:
        assert self.root is not None
        digest = hashlib.sha256(key.encode()).hexdigest()
        return self.root / kind / digest[:2] / digest[2:]

    def _read(self, kind: str, key: str) -> bytes | None:
        if self.root is None:
            return None
        path = self._path(kind, key)
        try:
            content = path.read_bytes()
            used = path.stat().st_mtime
        except OSError:
            return None
        data = content[_HEADER_BYTES:]
        if content[:_HEADER_BYTES] != _header(kind, key, data):
            _remove(path)  # torn by a crash or a failing disk: out of the way, so that the next put is not doubted
            return None
        if time.time() - used > _RENEW_S:
            with contextlib.suppress(OSError):
                os.utime(path)
        return data

    def _write(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
        except FileNotFoundError:  # somebody removed the folder just now
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            try:
                os.replace(temporary, path)
            except IsADirectoryError:
                path.rmdir()  # whoever made it; one that holds something is left, and the folder counts as unusable
                os.replace(temporary, path)
            except PermissionError:
                # Windows refuses to replace a file that another process has open: that process wrote or reads
                # the entry, so it is there. Elsewhere the folder itself is at fault.
                if os.name != "nt" or not path.exists():
                    raise
                _remove(Path(temporary))
        except BaseException:
            _remove(Path(temporary))
            raise

    def _keep(self, kind: str, key: str, data: bytes) -> None:
        with self._lock:
            self._memory_bytes += len(data) - len(self._memory.pop((kind, key), b""))
            self._memory[kind, key] = data
            while self._memory_bytes > self.limit_bytes:
                self._memory_bytes -= len(self._memory.popitem(last=False)[1])

    def _evict_if_needed(self, written: int) -> None:
        with self._lock:
            self._writes += 1
            known = self._disk_bytes is not None and self._writes % _REMEASURE_WRITES
            if known and self._disk_bytes is not None:
                self._disk_bytes += written
                if self._disk_bytes <= self.limit_bytes:
                    return
        files = sorted(self._files(), key=lambda file: file.used)
        total = sum(file.nbytes for file in files)
        if total > self.limit_bytes:
            for file in files[:-1]:  # the newest is what was just written
                if total <= self.limit_bytes * _EVICT_TO:
                    break
                _remove(file.path)
                total -= file.nbytes
        with self._lock:
            self._disk_bytes = total

    def _files(self) -> Iterator[_File]:
        """The entries on disk. Temporary files that a killed process left behind are removed on the way."""
        if self.root is None:
            return
        for folder, _, names in os.walk(self.root):
            parts = Path(folder).relative_to(self.root).parts
            if len(parts) != 2:
                continue
            for name in names:
                path = Path(folder, name)
                try:
                    status = path.stat()
                except OSError:
                    continue  # another process evicted it
                if name.startswith(_TEMPORARY):
                    if time.time() - status.st_mtime > _STALE_TEMPORARY_S:
                        _remove(path)
                elif len(name) == 62:
                    yield _File(path, parts[0], status.st_size, status.st_mtime)


def _header(kind: str, key: str, data: bytes) -> bytes:
    digest = hashlib.sha256(f"{kind}\0{key}\0".encode())
    digest.update(data)
    return _MAGIC + digest.digest()[:_CHECKSUM_BYTES]


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
