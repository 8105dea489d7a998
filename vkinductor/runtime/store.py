"""The disk store: bytes by kind and key, shared by all processes of a user.

Owns file names, checksums, atomic writes and eviction. Leaves to its callers what the bytes mean and what
belongs in a key (a compiler's version, a device's UUID): an entry is never checked against anything but its
own checksum, which covers its name too, so that another entry's file in its place is no entry.

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
from vkinductor.runtime.errors import CacheError

KINDS = ("spirv", "pipeline", "tuning")

_MAGIC = b"vkstore2"
_CHECKSUM_BYTES = 16
_HEADER_BYTES = len(_MAGIC) + _CHECKSUM_BYTES
_KIND_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ENTRY_NAME = re.compile(r"[a-z][a-z0-9_]*/[0-9a-f]{2}/[0-9a-f]{62}")
_USE = "use.txt"
_USE_BYTES = 1 << 16
_USE_LINE = re.compile(r"([a-z0-9_]+) (\d{1,12}) (\d{1,12})")
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
    """What one kind of entry has seen: `hits` and `misses` (of this process, unless said otherwise), `entries` and
    `bytes` now stored."""

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
        self._recorded: dict[str, tuple[int, int]] = {}
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
                path = self._path(kind, key)
                self._write(path, _header(path, data) + data)
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
        """Removes every entry (of all processes) and all counts; returns the bytes that were freed."""
        freed = sum(file.nbytes for file in self._files() if _remove(file.path))
        if self.root is not None:
            _remove(self.root / _USE)
        with self._lock:
            freed += self._memory_bytes
            self._memory.clear()
            self._memory_bytes = 0
            self._hits.clear()
            self._misses.clear()
            self._recorded.clear()
            self._disk_bytes = None
        return freed

    # Shipping entries: files as they are, by name. The name is a hash of the key, so it says nothing about it.

    def export(self) -> Iterator[tuple[str, bytes]]:
        """(name, content) of every sound entry on disk, for another store's `adopt`."""
        for file in sorted(self._files(), key=lambda file: file.path):
            with contextlib.suppress(OSError):
                content = file.path.read_bytes()
                if _is_sound(file.path, content):
                    yield "/".join(file.path.parts[-3:]), content

    def adopt(self, name: str, content: bytes) -> bool:
        """Takes over an entry that another store exported; False when it is here already.

        Raises:
            CacheError: it is no sound entry, or the folder cannot be written.
        """
        if self.root is None or not _ENTRY_NAME.fullmatch(name) or not _is_sound(Path(name), content):
            raise CacheError(f"{name!r} is no sound entry of a cache of this version: export it anew")
        path = self.root / name
        if path.exists():
            return False
        try:
            self._write(path, content)
        except OSError as error:
            raise CacheError(f"the cache folder {self.root} cannot be written: {error}") from error
        self._evict_if_needed(len(content))
        return True

    # Use over the processes: each adds one line for each kind when it ends.

    def record_use(self) -> None:
        """Adds this process's hits and misses, as far as they are not there yet, to the counts on disk."""
        with self._lock:
            new = {
                k: (self._hits[k] - h, self._misses[k] - m) for k in KINDS for h, m in [self._recorded.get(k, (0, 0))]
            }
            self._recorded = {k: (self._hits[k], self._misses[k]) for k in KINDS}
        text = "".join(f"{kind} {hits} {misses}\n" for kind, (hits, misses) in new.items() if hits or misses)
        if not text or self.root is None or not self._writable:
            return
        path = self.root / _USE
        with contextlib.suppress(OSError):
            if path.exists() and path.stat().st_size > _USE_BYTES:
                old = self.use()
                text += "".join(f"{kind} {hits} {misses}\n" for kind, (hits, misses) in old.items())
                _remove(path)
            with path.open("a") as file:  # short appends of several processes do not mix
                file.write(text)

    def use(self) -> dict[str, tuple[int, int]]:
        """For each kind (hits, misses) of all processes that have ended since the cache was cleared."""
        total = dict.fromkeys(KINDS, (0, 0))
        if self.root is None:
            return total
        try:
            lines = (self.root / _USE).read_text(errors="replace").splitlines()
        except OSError:
            return total
        for line in lines:
            match = _USE_LINE.fullmatch(line)
            if match and match[1] in total:
                hits, misses = total[match[1]]
                total[match[1]] = hits + int(match[2]), misses + int(match[3])
        return total

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
        if not _is_sound(path, content):
            _remove(path)  # torn by a crash or a failing disk: out of the way, so that the next put is not doubted
            return None
        if time.time() - used > _RENEW_S:
            with contextlib.suppress(OSError):
                os.utime(path)
        return content[_HEADER_BYTES:]

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


def _header(path: Path, data: bytes) -> bytes:
    """What stands before an entry's bytes in the file `path`: the same wherever the store's root is."""
    digest = hashlib.sha256("/".join(path.parts[-3:]).encode())
    digest.update(data)
    return _MAGIC + digest.digest()[:_CHECKSUM_BYTES]


def _is_sound(path: Path, content: bytes) -> bool:
    return content[:_HEADER_BYTES] == _header(path, content[_HEADER_BYTES:])


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
