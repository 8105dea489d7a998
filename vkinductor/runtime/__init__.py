"""Vulkan compute without torch: devices, memory, SPIR-V, pipelines, the stream and the disk store.

Everything here speaks in addresses, byte counts and bytes. Nothing in this package imports torch, and
importing it opens no Vulkan: `context.get()` does, on its first call.
"""
