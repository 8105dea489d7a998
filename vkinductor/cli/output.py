"""Where a command's report goes: to the terminal as text, to a file or the terminal as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def show(report: dict[str, Any], file: Path | None, describe: Callable[[dict[str, Any]], str]) -> None:
    """Print ``describe(report)``, and write the report as JSON to ``file`` if there is one; "-": print that instead."""
    text = json.dumps(report, indent=2)
    if str(file) == "-":
        print(text)
        return
    print(describe(report))
    if file is not None:
        file.write_text(text + "\n")
