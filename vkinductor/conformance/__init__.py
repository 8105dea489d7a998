"""Conformance: every operator that torch has samples for, on the device and on the CPU, and how the two compare.

`samples` knows torch's catalogue (op_db), `check` runs one entry, `worker` is the process it runs in, `pool` feeds
workers and survives their deaths, `report` keeps the results and writes the table. Only developers import this: it
needs torch.testing's private parts and what they need.
"""
