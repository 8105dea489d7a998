"""Workers that die or hang cost the variant they died of and nothing else."""

from __future__ import annotations

import sys

from vkinductor.conformance.pool import Task, run

# A worker that answers, ends, or sleeps, as the entry says; "twice" dies of one variant only.
WORKER = """
import json, os, sys, time
for line in sys.stdin:
    task = json.loads(line)
    if task["entry"] == "dies" or (task["entry"] == "part" and "static" in task["variants"]):
        os._exit(7)
    if task["entry"] == "hangs":
        time.sleep(60)
    if task["entry"] == "device":
        print("about to end", file=sys.stderr, flush=True)
        os._exit(int(os.environ["VKINDUCTOR_DEVICE"]))
    verdict = {"verdict": "gpu", "detail": str(os.getpid()), "samples": 1, "fallbacks": {}}
    print(json.dumps({v: verdict for v in task["variants"]}), flush=True)
"""

COMMAND = (sys.executable, "-c", WORKER)


def results(*entries: str, workers: int = 2, timeout: float = 30.0, **options):
    found = {}
    tasks = [Task(entry, "float32", ("eager", "static")) for entry in entries]
    run(tasks, workers, timeout, lambda task, got: found.update({task.entry: got}), COMMAND, **options)
    return {entry: {v: r["verdict"] for v, r in got.items()} for entry, got in found.items()}, found


def test_all_tasks_are_done_by_a_few_processes():
    names = [f"entry{i}" for i in range(20)]
    verdicts, found = results(*names)
    assert verdicts == {name: {"eager": "gpu", "static": "gpu"} for name in names}
    assert len({got["eager"]["detail"] for got in found.values()}) <= 2


def test_a_worker_that_dies_is_a_crash_and_the_rest_goes_on():
    verdicts, found = results("first", "dies", "last", workers=1)
    good = {"eager": "gpu", "static": "gpu"}
    assert verdicts == {"first": good, "dies": {"eager": "crash", "static": "crash"}, "last": good}
    assert found["dies"]["eager"]["detail"] == "the process ended with 7"


def test_a_crash_belongs_to_its_variant():
    assert results("part")[0] == {"part": {"eager": "gpu", "static": "crash"}}


def test_a_worker_that_hangs_is_ended():
    verdicts, found = results("hangs", timeout=0.5)
    assert verdicts == {"hangs": {"eager": "crash", "static": "crash"}}
    assert "no answer in 0.5 s" in found["hangs"]["eager"]["detail"]


def test_workers_take_turns_with_devices_and_their_last_words_are_kept():
    found = results("device", "device", workers=1, devices=["5", "6"])[1]
    assert found["device"]["eager"]["detail"] == "the process ended with 5: about to end"


def test_nothing_is_begun_when_time_is_up():
    assert results("first", seconds=0)[0] == {}


def test_no_tasks():
    assert results() == ({}, {})
