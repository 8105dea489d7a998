"""Eager operators through the compiler: one operator is a graph of one node, compiled with symbolic sizes.

So there is one code generator for everything the device runs. ``signature`` reads a call, ``graph`` makes one node of
it, ``program`` compiles that, ``compiler`` keeps the programs and decides which serves a call.
"""

from .compiler import EagerCompiler

__all__ = ["EagerCompiler"]
