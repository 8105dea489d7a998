"""Conformance: every operator that torch has samples for, on the device and on the CPU, and how the two compare.

`opdb` has the entries of torch's catalogue and `rows` those of operators.csv, `samples` chooses their samples, `check`
runs one entry, `worker` is the process it runs in, `pool` feeds workers and survives their deaths, `report` keeps the
results and writes the table, `groups` says what may stay on the CPU or cannot work. `families` and `model_check` do the
same for whole models. Only developers import this: it needs torch.testing's private parts and what they need.
"""
