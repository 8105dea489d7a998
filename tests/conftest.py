"""Shared by every test: caches in a temporary tree, one validation message fails the test that caused it."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before anything of the project is imported: tests never touch the user's caches, and processes that a test
# starts inherit the same tree.
_TEMPORARY = tempfile.TemporaryDirectory(prefix="vkinductor-tests-", ignore_cleanup_errors=True)
for _name, _folder in (("VKINDUCTOR_CACHE_DIR", "vkinductor"), ("TORCHINDUCTOR_CACHE_DIR", "inductor")):
    os.environ[_name] = os.path.join(_TEMPORARY.name, _folder)

# Compilers make many objects and few cycles: with Python's own thresholds a tenth of the time went into looking for
# them (2.8 of 30 s in tests/codegen/test_indexing.py). Tests of what is freed collect by themselves.
gc.set_threshold(20_000, 20, 20)

# What the CPU computes here is small, and each of xdist's workers would have a thread for each core: where those are
# busy, a thread that waits for the others spins (1.8 ms of processor time an attention of 40 keys instead of 13 us).
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Torch collects a generation after each compilation as well (3 %).
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")

# Expressions of sizes recur from test to test, more of them than sympy keeps by itself (4 %). Read when it is imported.
os.environ.setdefault("SYMPY_CACHE_SIZE", "20000")

# Compile workers would only compete with the tests for the cores; kernels are compiled in this process anyway. Before
# torch is imported, whichever folder's tests run.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Inductor's C++ for the CPU (loop counters, tests of other devices): it need not try with each cache and process
# whether the compiler knows the processor's vector instructions.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

try:
    import hypothesis
except ImportError:  # only some tests use it
    pass
else:
    # No time limit an example (CI machines are slow and shared), no folder of examples in the tree.
    hypothesis.settings.register_profile("project", deadline=None, database=None)
    hypothesis.settings.load_profile("project")


@pytest.fixture(scope="session")
def cache_dir() -> str:
    """The temporary VKINDUCTOR_CACHE_DIR of this test session."""
    return os.environ["VKINDUCTOR_CACHE_DIR"]


@pytest.fixture(autouse=True)
def no_validation_messages() -> Iterator[None]:
    """Fail a test during which the validation layer said anything (VKINDUCTOR_VALIDATION=1)."""
    from vkinductor.runtime import context, env, loader

    if not env.validation():
        yield
        return
    loader.clear_validation_messages()
    yield
    if context.is_open():
        context.get().synchronize()  # what is still recorded is this test's
    messages = loader.validation_messages()
    loader.clear_validation_messages()
    assert not messages, "validation messages:\n" + "\n".join(messages)


@pytest.fixture(autouse=True)
def no_bookkeeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what torch does at each compilation for logs alone (27 of 200 ms for one of its timers)."""
    if "torch._dynamo" in sys.modules:
        from vkinductor.conformance import bookkeeping

        bookkeeping.leave_out(monkeypatch.setattr)


@pytest.fixture
def device() -> object:
    """The open device of the runtime."""
    from vkinductor.runtime import context

    return context.get()


@pytest.fixture
def counters() -> object:
    """The runtime's counters, set to zero before the test."""
    from vkinductor.runtime.stats import counters as live

    live.reset()
    return live


@pytest.fixture
def empty_store(tmp_path: Path) -> Iterator[None]:
    """A disk store of this test alone, and results of tuning of this test alone."""
    from vkinductor.device.registry import registry
    from vkinductor.runtime.store import DiskStore

    device = registry.open().runtime
    before = device.store
    device.__dict__["store"] = DiskStore(tmp_path / "store")
    registry.tuning = None
    yield
    device.__dict__["store"] = before
    registry.tuning = None


@pytest.fixture
def one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Persistent kernels also on a driver that they are refused on: for those that are known to be right there."""
    from vkinductor.runtime.drivers import Driver
    from vkinductor.runtime.replay import persistent

    monkeypatch.setattr(persistent, "driver_of", lambda info: Driver())


@pytest.fixture
def fresh_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A function (**environment) -> Device that closes the device and opens it under these variables.

    Only for tests that hold no tensors: every address that is out becomes invalid. The device is closed
    afterwards.
    """
    from vkinductor.runtime import context

    def reopen(**environment: str) -> object:
        context.reset()
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return context.get()

    yield reopen
    context.reset()
