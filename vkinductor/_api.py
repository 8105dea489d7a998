"""The package's functions: thin fronts on the runtime and the device. Nothing here opens Vulkan before it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vkinductor.inspection.explanation import Explanation
    from vkinductor.runtime.deviceinfo import DeviceInfo


def register() -> None:
    """Register the torch device "vulkan" and what happens when it is first opened. Idempotent."""
    from vkinductor.device import hooks, registration

    registration.register()
    hooks.add_on_init(_register_compiler)
    hooks.add_on_init(_register_mirrors)


def _register_compiler() -> None:
    from vkinductor import codegen
    from vkinductor.codegen.eager import EagerCompiler
    from vkinductor.device import hooks

    codegen.register()
    hooks.set_compile_op(EagerCompiler())


def _register_mirrors() -> None:
    """Mirrors of dead CPU tensors and idle outputs of recordings go when device memory runs short.

    Those of a device that was closed go at once.
    """
    from vkinductor.codegen import recording
    from vkinductor.offload.mirrors import mirrors
    from vkinductor.runtime import context

    mirrors.clear()
    memory = context.get().memory
    free_tensors = memory.on_pressure

    def on_pressure() -> None:
        mirrors.sweep()
        recording.trim()
        if free_tensors is not None:
            free_tensors()

    memory.on_pressure = on_pressure


def is_available() -> bool:
    """Whether a usable Vulkan device is there. Opens it; never raises."""
    from vkinductor.runtime import context
    from vkinductor.runtime.errors import VulkanError

    try:
        context.get()
    except VulkanError:
        return False
    return True


def device_count() -> int:
    """Number of Vulkan devices of this machine (0 without a loader or driver)."""
    from vkinductor.runtime.errors import VulkanError
    from vkinductor.runtime.physical import list_devices

    try:
        return len(list_devices())
    except VulkanError:
        return 0


def device_info(index: int | None = None) -> DeviceInfo:
    """What is known of device ``index`` (None: the one in use): limits, features, memory heaps in bytes.

    Raises NoDeviceError when there is no such device.
    """
    from vkinductor.runtime import context
    from vkinductor.runtime.errors import NoDeviceError
    from vkinductor.runtime.physical import list_devices

    if index is None:
        return context.get().info
    devices = list_devices()
    if not 0 <= index < len(devices):
        raise NoDeviceError(f"there is no Vulkan device {index}: this machine has {len(devices)}")
    return devices[index]


def device_name(index: int | None = None) -> str:
    """Name of device ``index`` (None: the one in use). Raises NoDeviceError when there is none."""
    return device_info(index).name


def synchronize() -> None:
    """Wait until the device has finished everything queued. Raises DeviceLostError when it stopped answering."""
    from vkinductor.runtime import context

    if context.is_open():
        context.get().stream.synchronize()


def memory_stats() -> dict[str, int]:
    """Bytes allocated and reserved on the device, their peaks, and counts of allocations and blocks.

    Memory of tensors that have died is given back first. Opens the device; raises NoDeviceError without one.
    """
    import dataclasses

    return dataclasses.asdict(_swept().memory.stats())


def empty_cache() -> int:
    """Give unused device memory back to the driver, after waiting for the device; returns the bytes released."""
    from vkinductor.runtime.replay.resources import release_scratch

    device = _swept()
    release_scratch(device.runtime)
    return device.memory.empty_cache()


def _swept() -> Any:
    """The open device, after the memory of dead tensors has been given back."""
    from vkinductor.codegen import recording
    from vkinductor.device.registry import registry
    from vkinductor.offload.mirrors import mirrors

    device = registry.open()
    mirrors.sweep()
    recording.trim()
    device.ledger.sweep()
    return device


def cache_stats() -> dict[str, dict[str, int]]:
    """For each cache on disk its ``hits`` and ``misses`` in this process, and its ``bytes``.

    "spirv", "pipeline" and "tuning" are this package's; "graph" is Inductor's, hits and misses for every device.
    Opens the device; raises NoDeviceError without one.
    """
    import dataclasses

    from vkinductor.runtime import context

    kinds = {kind: dataclasses.asdict(stats) for kind, stats in context.get().store.stats().items()}
    return {"graph": _graph_cache_stats(), **kinds}


def _graph_cache_stats() -> dict[str, int]:
    from torch._dynamo.utils import counters

    from vkinductor.codegen import graph_cache

    seen = counters["inductor"]
    return {
        "hits": seen.get("fxgraph_cache_hit", 0),
        "misses": seen.get("fxgraph_cache_miss", 0),
        "bytes": sum(file.stat().st_size for file in graph_cache.graph_files()),
    }


def stats() -> dict[str, Any]:
    """Counters since the start or the last ``reset_stats``: dispatches, submits, barriers, kernels_compiled, h2d_bytes,
    d2h_bytes, ... as ints, and ``fallbacks``: operator name -> times it ran on the CPU."""
    from vkinductor.runtime.stats import counters

    return counters.snapshot()


def reset_stats() -> None:
    """Zero all counters."""
    from vkinductor.runtime.stats import counters

    counters.reset()


def set_fallback(policy: str) -> Any:
    """Set what an operator that would run on the CPU does from now on, in every thread of the process.

    "error" raises FallbackError, "warn" (the default) warns once for each operator, "allow" says nothing. In a ``with``
    statement the policy before comes back at its end. A graph compiled with ``options={"fallback": ...}`` has its own.
    Raises ValueError for another policy.
    """
    from vkinductor.device import policy as policies

    return policies.set_fallback(policy)


def register_lowering(op: Any, fn: Callable[..., Any], *, version: str = "", replace: bool = False) -> Any:
    """Run an operator on the device as ``fn``, written in other torch operators.

    op: an OpOverload, a torch.library.custom_op, or a name ("namespace::name"). fn takes the operator's arguments and
    returns what it returns. Compiled graphs take ``fn`` apart and fuse it; eager calls compile it. The gradient is the
    operator's own (torch.library.register_autograd). version: whatever distinguishes two versions of ``fn`` that do
    not differ in code that can be seen; cached graphs depend on it. The same registration again does nothing.

    Raises OperatorError: it is registered already with another ``fn`` (unless ``replace``), or torch takes the operator
    apart before backends see it. Returns the OpOverload.
    """
    from vkinductor.operators import register

    return register.register_lowering(op, fn, version=version, replace=replace)


def register_kernel(op: Any, glsl: str, **rules: Any) -> Any:
    """Run an operator on the device as a kernel written in GLSL; docs/custom-operators.md describes the text.

    op: a schema, "namespace::name(Tensor x, float scale) -> Tensor", which declares the operator, or an existing one as
    in ``register_lowering``; it returns one new tensor. What follows in a graph is fused into the kernel's stores.

    Keyword arguments (rules are functions of the operator's arguments):

    * style: "elementwise" (the text computes one element of the result into ``value``) or "workgroup" (it is the body
      of a whole kernel and stores with ``{{ store(position, value) }}``)
    * shape: the result's, a rule or the name of an argument (default: all tensors broadcast); dtype: the same, or a
      dtype (default: all tensors promoted)
    * dtypes, ranks: argument name -> allowed dtypes; number of dimensions or (least, most). check: a rule that returns
      what is wrong as a str, or raises ValueError or TypeError
    * preamble: GLSL in front of main (functions, shared arrays). workgroup: invocations of one (default 64). groups: a
      rule for the number of workgroups (default: one invocation for each element of the result)
    * backward, setup_context: as for torch.library.register_autograd. reference: the operator for CPU tensors
    * version, replace: as for ``register_lowering``

    Raises OperatorError for a wrong or second, different registration. Wrong GLSL raises ShaderCompileError when the
    kernel first runs, with lines of ``glsl`` named. Returns the OpOverload.
    """
    from vkinductor.operators import register

    return register.register_kernel(op, glsl, **rules)


def supported_ops(pattern: str = "*") -> dict[str, Any]:
    """How each operator that matches a pattern ("aten.conv*", "*sort*") runs on the device, by overload name.

    Values have ``where`` ("gpu", "view", "host" or "cpu") and ``why``. Opens no device.
    """
    from vkinductor.operators import supported

    return supported.supported_ops(pattern)


def explain(
    model: Any,
    *inputs: Any,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    **named_inputs: Any,
) -> Explanation:
    """What ``torch.compile(model, backend="vulkan")`` makes of a model or function, called with these inputs.

    Returns an object that prints as a report and has fields: ``graphs`` with their kernels (the operators fused into
    each and their source lines, bytes, flops), ``breaks`` with reason and source line, ``fallbacks`` with reason and
    source line, ``glsl(name)``. When a result requires gradients, the backward is compiled and explained too.

    The model is compiled anew and run once, as a copy (itself if it cannot be copied) on clones of the inputs; compiled
    code, caches of graphs, gradients, counters and random numbers of the process stay as they are.
    dynamic, options: as for torch.compile. Raises what compiling or running the model raises.
    """
    from vkinductor.inspection import explain as explaining

    return explaining.explain(model, inputs, named_inputs, dynamic, options)


def check_report(*, clear: bool = False) -> list[Any]:
    """What graphs compiled with ``options={"check": True}`` have found: one entry for each result of each kernel.

    The worst come first; entries print as a line each and have ``kernel``, ``operators``, ``where``, ``dtype``, ``ok``,
    the largest ``absolute``, ``relative`` and ``ulp`` errors, ``position``, ``got``, ``want``, and ``skipped`` (why
    nothing could be compared). clear: begin a new report after this one.
    """
    from vkinductor.device.registry import registry

    found = sorted(registry.checks.values(), key=lambda c: (c.ok, bool(c.skipped), -c.ulp))
    if clear:
        registry.checks.clear()
    return found
