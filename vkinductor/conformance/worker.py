"""The process that checks entries: a task a line on stdin, its result a line on stdout. It may die of what it runs."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from vkinductor.conformance import bookkeeping
from vkinductor.conformance.check import check
from vkinductor.conformance.entry import NAMES


def main() -> int:
    """Answers until stdin ends. What entries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        bookkeeping.leave_out()  # each time: modules are imported as entries need them
        task = json.loads(line)
        found = check(task["entry"], NAMES[task["dtype"]], tuple(task["variants"]), task["limit"])
        answers.write(json.dumps({variant: asdict(verdict) for variant, verdict in found.items()}) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
