"""Measurements beside peers: one runnable module a question, `python -m benchmarks.NAME --json FILE`."""
