"""What has been measured on this device, on disk and in memory.

An entry of the store (kind "tuning") is one problem's result with every candidate's time. An index for each family
(kind "tuning_index") repeats buckets and choices, because entries are found by key alone: it serves what is learnt from
neighbours, and tells cached graphs apart. Anything that cannot be read is a miss.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from vkinductor.device.registry import registry
from vkinductor.runtime import context
from vkinductor.runtime.device import Device

from .family import Bucket, Family, Size, version
from .select import Times

KIND, INDEX, SUSPECTS = "tuning", "tuning_index", "tuning_suspects"
# Part of every key: what is stored, how, and by which measures it was chosen.
FORMAT = 2

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One candidate. ``status``: "ok", "wrong", "failed" or "late" (no time was left). ``time``: microseconds of the
    device where calls wait for each other, ``independent`` where they do not, None unless "ok". ``detail``: what was
    wrong."""

    label: str
    status: str
    time: float | None = None
    detail: str = ""
    independent: float | None = None

    @property
    def mean(self) -> float | None:
        """By what candidates are compared: the geometric mean of both times."""
        if self.time is None or self.independent is None:
            return self.time
        return Times(self.time, self.independent).mean


@dataclass(frozen=True)
class Result:
    """What measuring a problem found. ``choice``: a label. ``baseline``: the heuristic's choice.

    ``complete``: whether every candidate was tried before time was up. ``nbytes``, ``flops``: of the problem.
    """

    family: str
    bucket: Bucket
    choice: str
    baseline: str
    rows: tuple[Row, ...]
    nbytes: int
    flops: int
    complete: bool = True

    def row(self, label: str) -> Row | None:
        """The candidate of that name."""
        return next((row for row in self.rows if row.label == label), None)

    @property
    def time(self) -> float:
        """Microseconds of the choice."""
        row = self.row(self.choice)
        assert row is not None
        assert row.time is not None
        return row.time


class Results:
    """The results of the open device. Thread-safe. ``seen``: those that this process has found or added, by key."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._lock = threading.RLock()
        self._known: dict[str, Result | None] = {}
        self.seen: dict[str, Result] = {}
        self._indices: dict[str, dict[str, tuple[Bucket, str]]] = {}

    def find(self, family: Family, bucket: Bucket) -> Result | None:
        """The stored result of a bucket. The store is asked once for each."""
        key = self._key(family, str(bucket))
        with self._lock:
            if key not in self._known:
                self._known[key] = self._read(key, lambda text: result_of(json.loads(text)))
                found = self._known[key]
                if found is not None and (found.family, str(found.bucket)) != (family.name, str(bucket)):
                    self._known[key] = None
            result = self._known[key]
            if result is not None:
                self.seen[key] = result
            return result

    def add(self, family: Family, result: Result) -> None:
        """Keep a result, over an earlier one of its bucket."""
        key = self._key(family, str(result.bucket))
        with self._lock:
            self._known[key] = self.seen[key] = result
            self.device.store.put(KIND, key, json.dumps(dataclasses.asdict(result)).encode())
            # What other processes have added in the meantime stays; of two that write at once one may be left out,
            # which only costs its neighbours a hint.
            index = {**self._read_index(family), **self.index(family)}
            index[str(result.bucket)] = (result.bucket, result.choice)
            self._indices[family.name] = index
            entries = [{"bucket": dataclasses.asdict(b), "choice": c} for b, c in index.values()]
            self.device.store.put(INDEX, self._key(family, "index"), json.dumps(entries).encode())

    def suspects(self, family: Family, bucket: Bucket) -> set[str]:
        """Candidates that were being run when a process ended: they may have taken it, or the device, with them."""
        found = self._read(
            self._key(family, f"suspects {bucket}"), lambda text: set(map(str, json.loads(text))), SUSPECTS
        )
        return found or set()

    def suspect(self, family: Family, bucket: Bucket, labels: set[str]) -> None:
        """What ``suspects`` is to return from now on."""
        self.device.store.put(SUSPECTS, self._key(family, f"suspects {bucket}"), json.dumps(sorted(labels)).encode())

    def index(self, family: Family) -> dict[str, tuple[Bucket, str]]:
        """Bucket's text -> (bucket, choice), of all results of a family; read once."""
        with self._lock:
            if family.name not in self._indices:
                self._indices[family.name] = self._read_index(family)
            return self._indices[family.name]

    def fingerprint(self, families: list[Family]) -> str:
        """What generated code depends on of all results; "" when there are none."""
        found = sorted((f.name, bucket, choice) for f in families for bucket, (_, choice) in self.index(f).items())
        return hashlib.sha256(repr(found).encode()).hexdigest() if found else ""

    def _read_index(self, family: Family) -> dict[str, tuple[Bucket, str]]:
        def decode(text: bytes) -> dict[str, tuple[Bucket, str]]:
            found = [(bucket_of(entry["bucket"]), str(entry["choice"])) for entry in json.loads(text)]
            return {str(bucket): (bucket, choice) for bucket, choice in found}

        return self._read(self._key(family, "index"), decode, INDEX) or {}

    def _read(self, key: str, decode: Callable[[bytes], T], kind: str = KIND) -> T | None:
        data = self.device.store.get(kind, key)
        try:
            return None if data is None else decode(data)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def _key(self, family: Family, what: str) -> str:
        info = self.device.info
        about = (FORMAT, family.name, what, info.uuid, info.driver_uuid, info.driver_version, version(family.sources))
        # Limits and features are part of it because they can be lowered.
        return repr((*about, info.limits, info.features, self.device.compiler.key()))


def results() -> Results:
    """Those of the open device (opens it)."""
    device = context.get()
    with registry.lock:
        if registry.tuning is None or registry.tuning.device is not device:
            registry.tuning = Results(device)
        found: Results = registry.tuning
        return found


def bucket_of(description: dict[str, Any]) -> Bucket:
    """The bucket of ``dataclasses.asdict``. Raises KeyError or TypeError."""
    return Bucket(description["kind"], tuple(Size(**size) for size in description["sizes"]))


def result_of(description: dict[str, Any]) -> Result:
    """The result of ``dataclasses.asdict``. Raises ValueError, KeyError or TypeError when it is none."""
    values = {**description, "bucket": bucket_of(description["bucket"])}
    values["rows"] = tuple(Row(**row) for row in description["rows"])
    result = Result(**values)
    chosen = result.row(result.choice)
    if chosen is None or not isinstance(chosen.time, float):
        raise ValueError("a result without the time of its choice")
    return result
