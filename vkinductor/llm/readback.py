"""Tokens on their way back to the host, while the device goes on with later steps."""

from __future__ import annotations

from typing import Any

import torch

from vkinductor.device import copies


class Pending:
    """Rows of a history, int64 (steps, batch), that the steps launched so far write and no later one does."""

    def __init__(self, rows: torch.Tensor):
        self._rows = rows
        self._launched = copies.mark() if rows.device.type == "vulkan" else None

    def read(self) -> list[list[int]]:
        """The tokens; waits for the steps that had been launched when this was made."""
        rows = self._rows if self._launched is None else copies.to_host_after(self._rows, self._launched)
        tokens: Any = rows.tolist()
        return list(tokens)


def worthwhile(device: torch.device) -> bool:
    """Whether steps launched ahead of a read save time: a CPU driver computes them with the reader's processor."""
    if device.type != "vulkan":
        return False
    from vkinductor import device_info

    return device_info().kind != "cpu"
