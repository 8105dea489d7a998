"""The Dynamo backend: ``torch.compile(f, backend="vulkan")``.

Checks modes and options, moves graphs of CPU tensors to the device (see ``offload``), and calls Inductor, which
calls ``codegen``.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx

Compiled = Callable[..., Any]

# torch.compile's mode -> Inductor configuration. Recording is the runtime's own and tuning ours (codegen/tuning): none
# of Inductor's CUDA graph or Triton autotuning settings applies.
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {},
    "max-autotune": {"vulkan.tune": True},
    "max-autotune-no-cudagraphs": {"vulkan.tune": True},
}


# Options of our own -> the Inductor setting that carries each: it is part of the cache key and reaches the backward.
# recording: partitions of kernels are recorded and replayed (codegen/recording.py).
# persistent: a recorded partition runs as one kernel where it can (runtime/replay/persistent.py).
# chained: its dispatches wait for each other, without barriers (runtime/replay/chained.py).
# int8_activations: rows that meet weights in blocks become bytes (codegen/quantized/staged.py).
# fallback, check, check_bounds, tune, tuning_seconds: compat.SETTINGS. torch.compile takes a mode or options, not both:
# tune is what mode="max-autotune" does.
OWN_OPTIONS: dict[str, str] = {
    "recording": "graph_partition",
    "fallback": "vulkan.fallback",
    "check": "vulkan.check",
    "check_bounds": "vulkan.check_bounds",
    "persistent": "vulkan.persistent",
    "chained": "vulkan.chained",
    "int8_activations": "vulkan.int8_activations",
    "tune": "vulkan.tune",
    "tuning_seconds": "vulkan.tuning_seconds",
}

# The values that some of them take, as they are carried.
CHOICES: dict[str, dict[Any, Any]] = {
    "fallback": {policy: policy for policy in ("error", "warn", "allow")},
    "check": {False: "", True: "warn", "warn": "warn", "error": "error"},
    "chained": {"auto": "auto", True: "chained", False: "dispatches"},
}

# What an option needs of other settings. Checks stand between the kernels of a graph, and a checked graph refers to
# what this process knows of it.
IMPLIED: dict[str, dict[str, Any]] = {
    "check": {"graph_partition": False, "force_disable_caches": True},
    "check_bounds": {"graph_partition": False},
}

# An option of the calls, not of the code: a file for a trace of their kernels (device/trace_file.py).
TRACE = "trace"


def valid_options() -> list[str]:
    """Names that ``options=`` accepts: Inductor's settings, except those this backend fixes."""
    from torch._inductor import list_options

    from vkinductor.codegen.settings import FIXED

    # The module's list holds its private names too.
    hidden = ("_", "vulkan.")
    public = {name for name in list_options() if not name.startswith(hidden) and not name.isupper()}
    return sorted((public | set(OWN_OPTIONS) | {TRACE}) - set(FIXED))


def settings(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The Inductor configuration of a mode and options.

    Raises ValueError for an unknown mode or option (with the modes, or the options of our own and the names that come
    nearest) and a value of the wrong type.
    """
    from vkinductor.codegen import compat
    from vkinductor.codegen.settings import FIXED

    compat.add_settings()
    name = mode or "default"
    if name not in MODES:
        raise ValueError(f"unknown mode {name!r} for backend 'vulkan'. Valid modes: {', '.join(MODES)}")
    patches = {**FIXED, **MODES[name]}
    for option, value in (options or {}).items():
        key = option.replace("-", "_")
        _check_option(option, key, value)
        if key == TRACE:
            continue
        value = CHOICES[key][value] if key in CHOICES else value
        patches[OWN_OPTIONS.get(key, key)] = value
        if value:
            patches.update(IMPLIED.get(key, {}))
    return patches


def _check_option(option: str, key: str, value: Any) -> None:
    from torch._inductor import config

    valid = valid_options()
    if key not in valid:
        close = difflib.get_close_matches(key, valid, n=3)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        own = ", ".join(sorted({*OWN_OPTIONS, TRACE}))
        raise ValueError(
            f"unknown option {option!r} for backend 'vulkan'.{hint} Options are {own}, and Inductor's settings "
            "(torch._inductor.list_options())"
        )
    if key == TRACE:
        if not isinstance(value, str) or not value:
            raise ValueError(f"option 'trace' of backend 'vulkan' takes the path of a file (str), not {value!r}")
        if not os.path.isdir(os.path.dirname(value) or "."):
            raise ValueError(f"option 'trace' of backend 'vulkan': the folder of {value!r} does not exist")
        return
    if key in CHOICES:
        if not isinstance(value, (str, bool)) or value not in CHOICES[key]:
            choices = ", ".join(map(repr, CHOICES[key]))
            raise ValueError(f"option {option!r} of backend 'vulkan' takes one of {choices}, not {value!r}")
        return
    default = functools.reduce(getattr, OWN_OPTIONS.get(key, key).split("."), config)
    kinds = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}.get(type(default))
    if kinds is not None and value is not None and type(value) not in kinds:
        raise ValueError(
            f"option {option!r} of backend 'vulkan' takes {type(default).__name__} (as in {default!r}), "
            f"not {type(value).__name__} {value!r}"
        )


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
    from vkinductor.runtime.errors import VulkanError, find

    try:
        patches = settings(mode, options)
    except ValueError as error:
        raise _as_is(error) from None
    try:
        compiled = compile_graph(module, example_inputs, patches)
        path = (options or {}).get(TRACE)
        return compiled if path is None else _traced(compiled, path)
    except Exception as error:
        ours = find(error, VulkanError)
        if ours is None:
            raise
        raise _as_is(ours) from error


def _as_is(error: Exception) -> Exception:
    """``error`` in a form that Dynamo hands to the user under its own type, not as BackendCompilerFailed."""
    from torch._dynamo.exc import ShortenTraceback

    if isinstance(error, ShortenTraceback):
        return error
    kind: Any = type(error)
    made: Exception = _transparent(kind)(*error.args)
    return made


@functools.cache
def _transparent(kind: Any) -> Any:
    """A subclass of ``kind`` that Dynamo does not wrap; it prints under the same name."""
    from torch._dynamo.exc import ShortenTraceback

    def __init__(self: Any, *args: Any) -> None:
        ShortenTraceback.__init__(self, *args, first_useful_frame=None)

    names = ("__module__", "__doc__", "__qualname__")
    return type(kind.__name__, (kind, ShortenTraceback), {"__init__": __init__, **{n: getattr(kind, n) for n in names}})


def compile_graph(module: fx.GraphModule, example_inputs: Sequence[Any], patches: dict[str, Any]) -> Callable[..., Any]:
    """Compile a Dynamo graph under an Inductor configuration (see ``settings``); errors come as they are raised."""
    import vkinductor  # registers the device when the backend was found through its entry point
    from vkinductor import codegen
    from vkinductor.device.registry import registry
    from vkinductor.offload import graph
    from vkinductor.offload.call import OffloadedGraph
    from vkinductor.offload.writes import written

    vkinductor.register()
    registry.open()
    codegen.register()
    values = graph.placeholder_values(module.graph, example_inputs)
    graph.check(values)
    if not graph.belongs_on_cpu(module, values):
        with _caching(values):
            return _inductor(module, example_inputs, patches)
    written_inputs = written(module, values)
    on_host = graph.host_outputs(module)
    stay = graph.numbers(module.graph)
    with _autocast(module), _caching(values):
        graph.move(module)
        compiled = _inductor(module, graph.on_device(values, stay), patches)
    return OffloadedGraph(compiled, written_inputs, on_host, stay, _aliased(values))


def _inductor(module: fx.GraphModule, inputs: Sequence[Any], patches: dict[str, Any]) -> Compiled:
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    from vkinductor.codegen import decompositions, tuning
    from vkinductor.codegen.direct import DirectGraph
    from vkinductor.runtime.errors import VulkanError, find

    @functools.wraps(compile_fx_inner)
    def inner(*args: Any, **kwargs: Any) -> Any:
        # Here, too, because the backward is compiled when it is first called, outside of `vulkan`.
        try:
            with tuning.session():
                return compile_fx_inner(*args, **kwargs)
        except Exception as error:
            ours = find(error, VulkanError)
            if ours is None or ours is error:
                raise
            raise ours from None

    with config.patch(patches):
        table = decompositions.table()
    compiled = compile_fx(module, list(inputs), inner_compile=inner, config_patches=patches, decompositions=table)
    return DirectGraph(cast(Compiled, compiled))


def _traced(compiled: Compiled, path: str) -> Compiled:
    from vkinductor.device.trace_file import TracedGraph, trace_file

    return TracedGraph(compiled, trace_file(path))


@contextlib.contextmanager
def _autocast(module: fx.GraphModule) -> Any:
    """Autocast on the device while a graph is traced that the user runs under autocast on the CPU."""
    from vkinductor.offload import graph

    entered = any(n.target is torch.amp.autocast_mode._enter_autocast for n in module.graph.nodes)
    around = torch.is_autocast_enabled("cpu")
    if entered or around:
        graph.keep_output_dtypes(module)
    if not around:
        yield
        return
    with torch.autocast("vulkan", dtype=torch.get_autocast_dtype("cpu"), cache_enabled=False):
        yield


def _caching(values: Sequence[Any]) -> Any:
    """The AOTAutograd cache, unless inputs share a storage.

    Its key (torch 2.11 to 2.13) leaves out storage offsets and sizes, on which the code for such inputs depends: it
    would return the code of other offsets.
    """
    from torch._functorch import config

    return config.patch(enable_autograd_cache=False) if _aliased(values) else contextlib.nullcontext()


def _aliased(values: Sequence[Any]) -> bool:
    """Whether some inputs share a storage."""
    storages = [v.untyped_storage()._cdata for v in values if isinstance(v, torch.Tensor)]
    return len(set(storages)) < len(storages)
