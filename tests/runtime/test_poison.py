"""Poison mode: addresses fault on the CPU, and everything else works as before."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from vkinductor.runtime.memory import POISON_BIAS


@pytest.fixture
def poisoned(fresh_device):
    return fresh_device(VKINDUCTOR_POISON="1")


def test_addresses_carry_the_bias(poisoned):
    address = poisoned.memory.allocate(100)
    assert address > POISON_BIAS
    assert address < 1 << 63
    assert poisoned.memory.bias == POISON_BIAS


@pytest.mark.parametrize("inline", [True, False])
def test_kernels_and_transfers_work(poisoned, kernels, inline):
    n = 1000
    x = np.arange(n, dtype=np.float32)
    a, b = kernels.upload(poisoned, x), poisoned.memory.allocate(4 * n)
    kernels.run_scale_add(poisoned, a, b, n, 2.0, 1.0, inline=inline)
    poisoned.stream.copy(a, b, 4 * n)
    poisoned.stream.fill(b, 4 * n, 0)
    assert np.array_equal(kernels.download(poisoned, a, n), x * 2 + 1)
    assert np.all(kernels.download(poisoned, b, n) == 0)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the signal")
def test_the_cpu_faults_on_such_an_address(kernels):
    code = """
import ctypes, faulthandler
from vkinductor.runtime import context
address = context.get().memory.allocate(64)
print("before", flush=True)
ctypes.string_at(address, 1)
print("after", flush=True)
"""
    result = kernels.python(code, VKINDUCTOR_POISON="1")
    assert result.returncode < 0
    assert result.stdout.split() == ["before"]


def test_without_poison_there_is_no_bias(fresh_device):
    assert fresh_device(VKINDUCTOR_POISON="0").memory.bias == 0
