"""Fixtures of the sweep's tests: compile in this process."""

from __future__ import annotations

import os

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
