"""The Dynamo backend: ``torch.compile(f, backend="vulkan")``.

Checks modes and options, moves graphs of CPU tensors to the device (see ``offload``), and calls Inductor, which
calls ``codegen``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

# torch.compile's mode -> Inductor configuration. Recording and tuning are the runtime's and the templates' own:
# none of Inductor's CUDA graph or Triton autotuning settings applies.
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {},
    "max-autotune": {},
    "max-autotune-no-cudagraphs": {},
}

def valid_options() -> list[str]:
    """Names that ``options=`` accepts: Inductor's settings, except those this backend fixes."""
    from torch._inductor import list_options

    from vkinductor.codegen.settings import FIXED

    return sorted(set(list_options()) - set(FIXED))


def settings(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The Inductor configuration of a mode and options; ValueError names an unknown one and lists the valid ones."""
    from vkinductor.codegen.settings import FIXED

    name = mode or "default"
    if name not in MODES:
        raise ValueError(f"unknown mode {name!r} for backend 'vulkan'. Valid modes: {', '.join(MODES)}")
    patches = {**FIXED, **MODES[name]}
    if options:
        valid = valid_options()
        for option, value in options.items():
            key = option.replace("-", "_")
            if key not in valid:
                close = difflib.get_close_matches(key, valid, n=3)
                hint = f" Did you mean {' or '.join(close)}?" if close else ""
                raise ValueError(
                    f"unknown option {option!r} for backend 'vulkan'.{hint} Valid options: {', '.join(valid)}"
                )
            patches[key] = value
    return patches


def vulkan(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a Dynamo graph for the Vulkan device.

    CPU inputs are mirrored on the device and results come back to the CPU; inputs on "vulkan" stay there.
    Raises ValueError for an unknown mode or option, NoDeviceError without a usable device, UnsupportedError for
    inputs the device cannot hold, and ShaderCompileError when a kernel does not compile.
    """
    from vkinductor.runtime.errors import VulkanError

    try:
        return _compile(module, example_inputs, settings(mode, options))
    except (VulkanError, ValueError) as error:
        raise _as_is(error) from error


def _as_is(error: Exception) -> Exception:
    """``error`` in a form that Dynamo hands to the user under its own type, not as BackendCompilerFailed."""
    from torch._dynamo.exc import ShortenTraceback

    if isinstance(error, ShortenTraceback):
        return error
    kind = type(error)
    transparent = type(kind.__name__, (kind, ShortenTraceback), {"__module__": kind.__module__})
    return transparent(*error.args, first_useful_frame=None)


def _compile(module: fx.GraphModule, example_inputs: Sequence[Any], patches: dict[str, Any]) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx

    import vkinductor  # registers the device when the backend was found through its entry point
    from vkinductor import codegen
    from vkinductor.offload import graph
    from vkinductor.offload.call import OffloadedGraph
    from vkinductor.runtime import context

    vkinductor.register()
    context.get()
    codegen.register()
    values = graph.placeholder_values(module.graph, example_inputs)
    graph.check(values)
    if "vulkan" in graph.devices(values) or not _touches_cpu(module, values):
        return compile_fx(module, list(example_inputs), config_patches=patches)
    graph.move(module)
    mutated = graph.mutated(module, values)
    compiled = compile_fx(module, graph.on_device(values), config_patches=patches)
    return OffloadedGraph(compiled, mutated)


def _touches_cpu(module: fx.GraphModule, values: Sequence[Any]) -> bool:
    """Whether the graph computes on CPU tensors (inputs, or what its factories make)."""
    from vkinductor.offload import graph

    if graph.devices(values):
        return "cpu" in graph.devices(values)
    made = [n.meta.get("example_value") for n in module.graph.nodes if n.op != "placeholder"]
    return "cpu" in graph.devices([m for m in made if isinstance(m, torch.Tensor)])
