"""The one piece of mutable module state: which instance and device this process has open, and under which
process id.

Owns the lock and the slots only. `loader` fills in the instance, `context` the device, which `context.reset` closes.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vkinductor.runtime.device import Device
    from vkinductor.runtime.loader import Instance


class Registry:
    """Instance, device, owner process and validation messages, guarded by one re-entrant lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.instance: Instance | None = None
        self.device: Device | None = None
        self.pid: int | None = None  # the process that opened the instance
        self.forked = False  # True in a child of a process that had it open
        self.hooks_installed = False  # atexit and fork hooks, installed once
        self.messages: list[str] = []  # from the validation layer


registry = Registry()
