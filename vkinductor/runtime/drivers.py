"""What is known of drivers and no property tells: a row for each that differs from what Vulkan promises or goes beyond.

Owns what was found out, by the name that a driver has for itself; what follows from it stands where it is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vkinductor.runtime.deviceinfo import UNLIMITED, DeviceInfo


@dataclass(frozen=True)
class Driver:
    """Facts about the driver of this ``name`` (VkPhysicalDeviceDriverProperties::driverName), in Mesa's major versions
    ``below`` that one."""

    name: str = ""
    below: int | None = None
    # Passes of all loops of an invocation together, past which it ends them (see codegen/loop_limit.py).
    max_loop_iterations: int = UNLIMITED
    # Inside of the loop over steps and workgroups of a persistent kernel, where some subgroups of a workgroup make no
    # pass of an inner loop and others do, those that did stop at one of the next workgroups (the counter of passes is
    # not used up).
    loses_invocations: bool = False
    # A barrier of a subgroup is one of the workgroup: subgroups that come to a different number of them meet at the
    # wrong ones. Its invocations are in step with each other.
    joins_subgroups: bool = False
    # Dispatches begin in order, and many short ones are faster where they wait for each other (see replay/chained.py).
    chains: bool = False


DRIVERS = (
    # lavapipe of Mesa 22.3.6, no longer of 25.0.7. The limit is LP_MAX_TGSI_LOOP_ITERATIONS.
    Driver("llvmpipe", below=25, max_loop_iterations=65535, loses_invocations=True),
    # 25.0.7.
    Driver("llvmpipe", joins_subgroups=True),
    # Measured with 580.159 on an H200. Mesa's for the same cards has another name.
    Driver("NVIDIA", chains=True),
)


def known(name: str, text: str) -> Driver:
    """The row of a driver that calls itself ``name``; ``text`` is its driverInfo, as "Mesa 22.3.6 (LLVM 15.0.6)".

    lavapipe's driverVersion is 1 in every version of Mesa. One that cannot be read is taken for an old one.
    """
    version = re.match(r"Mesa (\d+)\.", text)
    for driver in DRIVERS:
        later = driver.below is not None and version is not None and int(version[1]) >= driver.below
        if driver.name == name and not later:
            return driver
    return Driver()


def driver_of(info: DeviceInfo) -> Driver:
    """The row of a device's driver."""
    return known(info.driver_name, info.driver_info)
