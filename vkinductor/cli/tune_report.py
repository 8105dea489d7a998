"""The tuner's results as one HTML file: a bar for each candidate, with the device's ceilings as lines. No network."""

from __future__ import annotations

from html import escape
from typing import Any

_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 1100px; padding: 0 1em; color: #222; }
h2 { font-size: 1.1em; margin: 2em 0 0.3em; } p { margin: 0.3em 0; color: #555; }
table { border-collapse: collapse; } td, th { padding: 0.1em 0.9em 0.1em 0; text-align: right; }
td:last-child, th:last-child { text-align: left; } svg { display: block; margin: 0.6em 0; }
svg text { font: 11px ui-monospace, monospace; fill: #333; }
"""
_WIDTH, _NAMES, _ROW, _TOP = 1060, 430, 18, 22
_COLOURS = {"choice": "#2a7f4f", "heuristic": "#c77f1a", "": "#8aa5c4"}


def page(report: dict[str, Any]) -> str:
    """The whole file. ``report``: what `tune --json` writes."""
    ceilings = report["ceilings"]
    copy, rates = ceilings["copy_gb_s"], ceilings["tflop_s"]
    about = [f"{report['device']}, {report['driver']}, torch {report['torch']}"]
    if copy:
        about.append(f"copy bandwidth {copy:.1f} GB/s")
    about += [f"best matrix rate measured so far in {dtype}: {rate:.3g} TFLOP/s" for dtype, rate in rates.items()]
    about.append(
        "Each time is that of a call that waits for the one before, on operands that no cache holds. "
        "Green: chosen; orange: the heuristic's choice."
    )
    parts = [f"<p>{escape(line)}</p>" for line in about]
    for problem in report["problems"]:
        parts += _problem(problem, copy, rates.get(problem["problem"].split()[0]))
    parts += [f"<p>not tuned: {escape(what)}</p>" for what in report["not_tuned"]]
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>vkinductor tune</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>Tuning results</h1>\n{body}\n</body></html>\n"
    )


def _problem(problem: dict[str, Any], copy: float | None, rate: float | None) -> list[str]:
    timed = [row for row in problem["candidates"] if row["us"]]
    dropped = [row for row in problem["candidates"] if row["status"] in ("wrong", "failed")]
    late = sum(row["status"] == "late" for row in problem["candidates"])
    parts = [f"<h2>{escape(problem['family'])} {escape(problem['problem'])}</h2>"]
    if timed:
        parts.append(_chart(problem, timed, *_axis(problem, copy, rate)))
        parts.append(_table(problem, timed))
    parts += [f"<p>{escape(row['candidate'])}: {escape(row['status'])} {escape(row['detail'])}</p>" for row in dropped]
    if late:
        parts.append(f"<p>no time was left for {late} more</p>")
    return parts


def _axis(problem: dict[str, Any], copy: float | None, rate: float | None) -> tuple[str, str, float | None]:
    """(key of the rows, unit, ceiling): the rate that bounds this problem on the device."""
    memory_bound = copy and rate and problem["flops"] / (rate * 1e12) < problem["nbytes"] / (copy * 1e9)
    return ("gb_s", "GB/s", copy) if memory_bound or not problem["flops"] else ("tflop_s", "TFLOP/s", rate)


def _chart(problem: dict[str, Any], rows: list[dict[str, Any]], key: str, unit: str, ceiling: float | None) -> str:
    largest = max([row[key] for row in rows] + ([ceiling] if ceiling else []))
    scale = (_WIDTH - _NAMES - 90) / (largest or 1.0)
    height = _TOP + _ROW * len(rows) + 4
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" role="img">']
    for i, row in enumerate(rows):
        y = _TOP + i * _ROW
        colour = _COLOURS[next((of for of in ("choice", "heuristic") if row["candidate"] == problem[of]), "")]
        width = max(1.0, row[key] * scale)
        parts.append(f'<text x="{_NAMES - 8}" y="{y + 12}" text-anchor="end">{escape(row["candidate"])}</text>')
        parts.append(f'<rect x="{_NAMES}" y="{y + 2}" width="{width:.1f}" height="{_ROW - 4}" fill="{colour}">')
        parts.append(f"<title>{escape(row['candidate'])}: {row['us']:.2f} us</title></rect>")
        parts.append(f'<text x="{_NAMES + width + 5:.1f}" y="{y + 12}">{row[key]:.3g}</text>')
    if ceiling:
        x = _NAMES + ceiling * scale
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" y2="{height}" stroke="#b03030"/>')
        name = "copy" if key == "gb_s" else "best matrix rate"
        parts.append(f'<text x="{x:.1f}" y="12" text-anchor="end">{name} {ceiling:.3g} {unit}</text>')
    parts.append(f'<text x="{_NAMES}" y="12">{unit}</text></svg>')
    return "".join(parts)


def _table(problem: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    head = "<tr><th>us</th><th>TFLOP/s</th><th>GB/s</th><th>of the heuristic's speed</th><th>candidate</th></tr>"
    lines = []
    for row in rows:
        speed = f"{row['of_heuristic']:.2f}" if "of_heuristic" in row else ""
        cells = (f"{row['us']:.2f}", f"{row['tflop_s']:.4g}", f"{row['gb_s']:.4g}", speed, escape(row["candidate"]))
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<details><summary>times</summary><table>{head}{''.join(lines)}</table></details>"
