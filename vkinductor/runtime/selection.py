"""Which device to use, and the test overrides of what devices report. Pure functions over `DeviceInfo`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from vkinductor.runtime.deviceinfo import DeviceInfo, Features, Limits
from vkinductor.runtime.errors import NoDeviceError, UnsupportedError, VulkanError

# In order of preference. A CPU driver is used only when there is nothing else, or when it is asked for.
KIND_ORDER = ("discrete", "integrated", "virtual", "other", "cpu")

MIN_API = (1, 2)

# Field of Features -> how an error names it.
REQUIRED: dict[str, str] = {
    "buffer_device_address": "bufferDeviceAddress",
    "int64": "shaderInt64",
    "storage_8bit": "storageBuffer8BitAccess",
    "storage_16bit": "storageBuffer16BitAccess",
    "scalar_block_layout": "scalarBlockLayout",
    "timeline_semaphore": "timelineSemaphore",
}

# Names in VKINDUCTOR_LIMITS that stand for several features.
ALIASES: dict[str, tuple[str, ...]] = {
    "subgroup_ops": (
        "subgroup_vote",
        "subgroup_arithmetic",
        "subgroup_ballot",
        "subgroup_shuffle",
        "subgroup_shuffle_relative",
        "subgroup_clustered",
    ),
}


def missing_requirements(api: tuple[int, ...], features: Features, has_compute_queue: bool = True) -> tuple[str, ...]:
    """What a device lacks of what the runtime requires, in words; empty when it can be used."""
    missing = []
    if tuple(api[:2]) < MIN_API:
        missing.append(f"Vulkan 1.2 (the driver has {'.'.join(map(str, api))})")
    if not has_compute_queue:
        missing.append("a compute queue")
    missing += [words for field, words in REQUIRED.items() if not getattr(features, field)]
    return tuple(missing)


def describe(devices: Sequence[DeviceInfo]) -> str:
    """One indented line a device, for error messages."""
    return "\n".join(
        f"  {device}" + (f": lacks {', '.join(device.missing)}" if device.missing else "") for device in devices
    )


def choose(devices: Sequence[DeviceInfo], selector: str | None = None) -> DeviceInfo:
    """The device to open.

    selector: None takes the first usable device of the best kind. Otherwise an index in enumeration order, a
    UUID (with or without dashes), or a part of the name, in any case; among several matches the best kind
    wins. Digits that are no valid index are tried as a name ("4090").

    Raises:
        NoDeviceError: no devices, or none matches; the message lists them.
        UnsupportedError: a device lacks what the runtime requires; the message names it.
    """
    if not devices:
        raise NoDeviceError(
            "no Vulkan device was found. Install a driver: your GPU vendor's, or Mesa's mesa-vulkan-drivers "
            "for the CPU; `vulkaninfo --summary` lists what the loader sees"
        )
    ranked = sorted(devices, key=lambda d: KIND_ORDER.index(d.kind) if d.kind in KIND_ORDER else len(KIND_ORDER))
    if selector is None:
        usable = [device for device in ranked if not device.missing]
        if not usable:
            raise UnsupportedError(f"no device has what is required:\n{describe(devices)}\nUpdate the driver")
        return usable[0]
    matches = [d for d in devices if selector.isdecimal() and int(selector) == d.index]
    matches = matches or [d for d in ranked if d.uuid and d.uuid == selector.replace("-", "").lower()]
    matches = matches or [d for d in ranked if selector.lower() in d.name.lower()]
    if not matches:
        raise NoDeviceError(
            f"VKINDUCTOR_DEVICE={selector!r} matches no device. Give an index, a part of a name or a UUID of:"
            f"\n"
            f"{describe(devices)}"
        )
    chosen = next((d for d in matches if not d.missing), matches[0])
    if chosen.missing:
        raise UnsupportedError(
            f"VKINDUCTOR_DEVICE={selector!r} is {chosen}, which lacks {', '.join(chosen.missing)}: "
            "update its driver or choose another device"
        )
    return chosen


def _parse(name: str, text: str, template: Any) -> Any:
    if isinstance(template, bool):
        return text.lower() not in ("0", "false", "off", "no")
    if isinstance(template, tuple):
        values = tuple(int(part, 0) for part in text.split("x"))
        if len(values) != len(template):
            raise ValueError(f"{name} takes {len(template)} numbers, as in 64x1x1")
        return values
    return float(text) if isinstance(template, float) else int(text, 0)


def apply_overrides(limits: Limits, features: Features, text: str) -> tuple[Limits, Features]:
    """`limits` and `features` with the overrides of VKINDUCTOR_LIMITS: name=value, separated by commas.

    Names are fields of Limits and Features and those of `ALIASES`; three-dimensional limits are written
    64x1x1. A limit can only be lowered and a feature only be switched off, because the driver would not keep
    a promise we invent; the two minimum alignments and min sizes can only be raised for the same reason.

    Raises:
        VulkanError: an unknown name, a value that does not parse, or more than the device has.
    """
    limit_fields = {f.name for f in dataclasses.fields(Limits)}
    feature_fields = {f.name for f in dataclasses.fields(Features)}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = item.partition("=")
        name = name.strip()
        try:
            if not equals:
                raise ValueError("expected name=value")
            if name in limit_fields:
                old = getattr(limits, name)
                new = _parse(name, value.strip(), old)
                if new != old:
                    _check_direction(name, old, new)
                limits = dataclasses.replace(limits, **{name: new})
            elif name in feature_fields or name in ALIASES:
                if _parse(name, value.strip(), True):
                    continue  # what the device has stays; what it lacks cannot be invented
                for field in ALIASES.get(name, (name,)):
                    features = dataclasses.replace(features, **{field: False})
            else:
                known = ", ".join(sorted(limit_fields | feature_fields | set(ALIASES)))
                raise ValueError(f"unknown name; the known ones are {known}")
        except ValueError as error:
            raise VulkanError(f"VKINDUCTOR_LIMITS: cannot use {item!r}: {error}") from error
    return limits, features


# Limits for which a larger number is the tighter one; the others that may not change at all are facts about
# timing.
_RAISE_ONLY = ("min_storage_alignment", "non_coherent_atom_size", "subgroup_size_min")


def _check_direction(name: str, old: Any, new: Any) -> None:
    pairs = list(zip(old, new, strict=True)) if isinstance(old, tuple) else [(old, new)]
    raises = name in _RAISE_ONLY
    for before, after in pairs:
        if (after < before) if raises else (after > before):
            raise ValueError(f"the device has {old}, and it can only be {'raised' if raises else 'lowered'}")
