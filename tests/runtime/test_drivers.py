"""What is known of drivers by their names and versions."""

from __future__ import annotations

import dataclasses

import pytest

from vkinductor.runtime.deviceinfo import UNLIMITED
from vkinductor.runtime.drivers import Driver, driver_of, known


@pytest.mark.parametrize(
    ("name", "text", "most"),
    [
        ("llvmpipe", "Mesa 22.3.6 (LLVM 15.0.6)", 65535),
        ("llvmpipe", "Mesa 25.0.7-2 (LLVM 15.0.6)", UNLIMITED),
        ("llvmpipe", "", 65535),
        ("SwiftShader driver", "", UNLIMITED),
        ("NVIDIA", "580.1", UNLIMITED),
    ],
)
def test_the_loop_limit_and_what_comes_with_it(name, text, most):
    driver = known(name, text)
    assert driver.max_loop_iterations == most
    assert driver.loses_invocations == (most != UNLIMITED)
    assert driver.joins_subgroups == (name == "llvmpipe" and most == UNLIMITED)


def test_only_the_driver_that_was_measured_chains():
    assert known("NVIDIA", "580.159.04").chains
    assert not known("NVK", "Mesa 25.2.1").chains
    assert known("NVK", "Mesa 22.3.6") == known("", "") == Driver()


def test_of_a_device(device):
    own = driver_of(device.info)
    assert own.max_loop_iterations == device.info.limits.max_loop_iterations
    assert driver_of(dataclasses.replace(device.info, driver_name="NVIDIA")).chains
