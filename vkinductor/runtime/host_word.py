"""A word in mapped memory into which a submission writes its value when all else in it is done, for a host that polls.

On an H100 such a word is seen 14 us after a submit, a semaphore after 35 (polled) or 46 (waited for). A shader writes
it: with vkCmdFillBuffer submissions took some 25 us longer on an H200; a dependent dispatch takes about 3. Owns the
word, the shader and what goes into the command buffer; which submissions write it is the recorder's decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkinductor.runtime.abi import EXTENSIONS, ArgumentLayout
from vkinductor.runtime.barriers import ALL_SOURCES, TO_COMPUTE_AND_HOST, Barriers
from vkinductor.runtime.pipeline import KernelSource

if TYPE_CHECKING:
    from typing import Any

    from vkinductor.runtime.device import Device

_STAGE_COMPUTE = 0x20
_BIND_COMPUTE = 1
_MASK = (1 << 32) - 1

_LAYOUT = ArgumentLayout((("dst", "ptr"), ("value", "u32")))


def source() -> KernelSource:
    """The kernel: one invocation writes one word."""
    extensions = "".join(f"#extension {name} : require\n" for name in EXTENSIONS)
    glsl = f"""#version 460
{extensions}layout(local_size_x = 1) in;
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Word {{ uint v; }};
{_LAYOUT.glsl(True)}
void main() {{ Word(ARG.dst).v = ARG.value; }}
"""
    return KernelSource("host_word", glsl, _LAYOUT)


class HostWord:
    """Not thread-safe: the stream's lock is held by every caller but the one that makes it (it compiles the shader)."""

    def __init__(self, device: Device, barriers: Barriers) -> None:
        self._device, self._barriers = device, barriers
        self._pipeline = device.pipelines.get(source())
        self._block = device.blocks.create(256, device.blocks.plan.download)
        self._word = device.ffi.cast("volatile uint32_t *", self._block.host)
        self._word[0] = 0

    def record(self, command: Any, value: int) -> None:
        """Let `command`, a primary command buffer, write `value` when what was recorded before is done and the host can
        read what it wrote. Binds a pipeline and push constants of its own.
        """
        device, pipeline = self._device, self._pipeline
        self._barriers.record(command, ALL_SOURCES, TO_COMPUTE_AND_HOST)
        vk, args = device.vk, pipeline.pack(self._block.base, value & _MASK)
        vk.vkCmdBindPipeline(command, _BIND_COMPUTE, pipeline.handle)
        vk.vkCmdPushConstants(command, pipeline.layout, _STAGE_COMPUTE, 0, len(args), device.ffi.from_buffer(args))
        vk.vkCmdDispatch(command, 1, 1, 1)

    def reached(self, value: int) -> bool:
        """Whether a submission of this value or a later one has written. Far fewer than 2^31 are in flight."""
        behind: int = (self._word[0] - value) & _MASK
        return behind <= _MASK // 2

    def close(self) -> None:
        """Free the memory; the device must be idle or lost."""
        self._device.blocks.destroy(self._block)
