"""Groups of entries name entries that exist, and the parts of the days cover all."""

from __future__ import annotations

import datetime

from vkinductor.conformance import groups, samples


def test_what_ci_checks_exists():
    assert set(groups.FAST) <= set(samples.names())
    assert len(groups.FAST) == len(set(groups.FAST))


def test_every_pattern_fits_something():
    names = samples.names()
    assert all(any(groups.on_the_cpu(n) == kind for n in names) for kind in groups.ON_THE_CPU)
    assert groups.on_the_cpu("linalg.det") == "linear algebra"
    assert groups.on_the_cpu("add") is None
    assert groups.reason("to_sparse") == "sparse storage"
    assert groups.reason("add") is None


def test_the_parts_of_some_days_are_all_entries():
    names = [f"entry{i}" for i in range(10)]
    day = datetime.date(2026, 1, 1)
    parts = [groups.of_the_day(names, 3, day + datetime.timedelta(days=i)) for i in range(3)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert groups.of_the_day(names, 3, day + datetime.timedelta(days=3)) == parts[0]
