"""Results on disk, a line for each task as it ends, so that a run can go on where it stopped; counts; the table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vkinductor.conformance import groups
from vkinductor.conformance.check import VARIANTS, VERDICTS

Results = dict[tuple[str, str], dict[str, Any]]

# What a table shows of a verdict.
_SHOWN = {
    "gpu": "gpu", "fallback": "cpu", "skipped": "-", "unsupported": "no", "error": "ERROR", "wrong": "WRONG",
    "crash": "CRASH",
}  # fmt: skip


class ReportError(Exception):
    """A file that does not hold results, or holds those of something else."""


class Log:
    """A file of results (JSON lines). The first line says what was checked; a line that is cut short is ignored."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self._path = path
        self.results: Results = {}
        if path.exists() and path.stat().st_size:
            found, self.results = load(path)
            if found != about:
                raise ReportError(f"{path} holds results of {found}, not of {about}: name another file or remove it")
            # What a killed run left of a line goes.
            self._file = path.open("a")
            if not path.read_text().endswith("\n"):
                self._file.write("\n")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w")
            self._write({"about": about})

    def add(self, entry: str, dtype: str, verdicts: dict[str, Any]) -> None:
        """Keep the verdicts of an entry in a dtype."""
        self.results[entry, dtype] = verdicts
        self._write({"entry": entry, "dtype": dtype, "verdicts": verdicts})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def load(path: Path) -> tuple[dict[str, Any], Results]:
    """(what was checked, results) of a file.

    Raises:
        ReportError: it is not such a file.
    """
    about: dict[str, Any] | None = None
    results: Results = {}
    for line in path.read_text().splitlines():
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if not isinstance(content, dict):
            continue
        if about is None:
            about = content.get("about")
        elif "verdicts" in content:
            results[content["entry"], content["dtype"]] = content["verdicts"]
    if about is None:
        raise ReportError(f"{path} does not hold results of conformance")
    return about, results


def counts(results: Results) -> Counter[str]:
    """How many (entry, dtype, variant) have each verdict."""
    return Counter(v["verdict"] for verdicts in results.values() for v in verdicts.values())


def bad(results: Results, *kinds: str) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """(entry, dtype, variant, verdict) of those with one of these verdicts."""
    for (entry, dtype), verdicts in sorted(results.items()):
        for variant, verdict in verdicts.items():
            if verdict["verdict"] in kinds:
                yield entry, dtype, variant, verdict


def is_bad(entry: str, verdict: dict[str, Any]) -> bool:
    """Whether a verdict is a fault: wrong, a crash, or an error for which no reason is listed."""
    kind = verdict["verdict"]
    return kind in ("wrong", "crash") or (kind == "error" and groups.reason(entry) is None)


def share(results: Results, variants: Iterable[str]) -> tuple[int, int]:
    """(float32 entries that run on the GPU alone in all of ``variants``, those that were checked).

    Linear algebra, FFT and complex numbers, and the rows of operators.csv, are left out.
    """
    wanted = tuple(variants)
    whole = checked = 0
    for (entry, dtype), verdicts in results.items():
        found = [verdicts[v]["verdict"] for v in wanted if v in verdicts]
        found = [kind for kind in found if kind != "skipped"]
        if dtype == "float32" and found and not groups.on_the_cpu(entry) and not entry.startswith("row:"):
            checked += 1
            whole += all(kind == "gpu" for kind in found)
    return whole, checked


def _shares(results: Results) -> Iterator[str]:
    what = "float32 entries outside linear algebra, FFT and complex numbers"
    for direction, variants in (("forward", ("eager", "static", "dynamic")), ("backward", ("backward",))):
        whole, checked = share(results, variants)
        if checked:
            yield f"* {what}, {direction}: {whole} of {checked} on the GPU alone ({100 * whole / checked:.1f} %)"
    total = sum(counts(results).values())
    failed = sum(1 for _ in bad(results, "error", "unsupported"))
    if total:
        yield f"* error or unsupported: {failed} of {total} ({100 * failed / total:.2f} %)"


def table(about: dict[str, Any], results: Results) -> str:
    """Markdown: how many of what, what is not right and why, every entry."""
    lines = ["# Operators", "", "Generated by `python -m vkinductor conformance`; not edited by hand.", ""]
    lines += [f"* {name}: {value}" for name, value in about.items()]
    found = counts(results)
    lines += ["", "| verdict | variants of entries and dtypes |", "|---|---:|"]
    lines += [f"| {verdict} | {found[verdict]} |" for verdict in VERDICTS if found[verdict]]
    lines += ["", *_shares(results)]
    for kind in ("crash", "wrong", "error", "unsupported"):
        rows = list(bad(results, kind))
        if rows:
            lines += ["", f"## {kind}", "", "| entry | dtype | variant | reason | what |", "|---|---|---|---|---|"]
            lines += [
                f"| {_code(e)} | {d} | {v} | {groups.reason(e) or ''} | {_cell(verdict['detail'])} |"
                for e, d, v, verdict in rows
            ]
    kinds = {kind: sorted({e for e, _ in results if groups.on_the_cpu(e) == kind}) for kind in groups.ON_THE_CPU}
    lines += ["", "## What may stay on the CPU for now", ""]
    lines += [f"* {kind}: {', '.join(map(_code, entries))}" for kind, entries in kinds.items() if entries]
    lines += ["", "## All entries", "", "The worst of a variant's dtypes. cpu: some operator ran on the CPU.", ""]
    lines += [f"| entry | {' | '.join(VARIANTS)} | on the CPU |", f"|---|{'---|' * len(VARIANTS)}---|"]
    for entry in sorted({entry for entry, _ in results}):
        rows_of = [verdicts for (name, _), verdicts in results.items() if name == entry]
        cells = [_SHOWN[_worst(v[variant]["verdict"] for v in rows_of if variant in v)] for variant in VARIANTS]
        fallen = sorted({op for v in rows_of for verdict in v.values() for op in verdict["fallbacks"]})
        lines.append(f"| {_code(entry)} | {' | '.join(cells)} | {_cell(', '.join(fallen))} |")
    return "\n".join(lines) + "\n"


def _worst(verdicts: Iterable[str]) -> str:
    return max(verdicts, key=VERDICTS.index, default="skipped")


def _code(text: str) -> str:
    return f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:160]
