"""Rewrites a Dynamo graph from the CPU to the device, before AOTAutograd sees it.

Placeholders get fake tensors on the device with the same sizes, strides, symbols and aliasing; constants and
``device=`` arguments move. Which inputs the graph writes is writes.py's, what crosses at run time call.py's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from vkinductor.runtime.errors import UnsupportedError

DEVICE = torch.device("vulkan", 0)


def devices(values: Sequence[Any]) -> set[str]:
    """Device types of the tensors among ``values``."""
    return {v.device.type for v in values if isinstance(v, torch.Tensor)}


def placeholder_values(graph: fx.Graph, example_inputs: Sequence[Any]) -> list[Any]:
    """What Dynamo knows of each input: its fake tensor or symbol (real tensors carry no symbols).

    Numbers (see ``numbers``) are the real tensors: from these AOTAutograd finds the symbols again.
    """
    nodes = [n for n in graph.nodes if n.op == "placeholder"]
    return [
        real if _is_number(n) else n.meta.get("example_value", real)
        for n, real in zip(nodes, example_inputs, strict=True)
    ]


def numbers(graph: fx.Graph) -> frozenset[int]:
    """Positions of the inputs that are Python numbers in the user's code, which Dynamo passes as CPU tensors.

    They stay on the CPU: kernels take them by value.
    """
    nodes = [n for n in graph.nodes if n.op == "placeholder"]
    return frozenset(i for i, n in enumerate(nodes) if _is_number(n))


def _is_number(node: fx.Node) -> bool:
    return getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False)


def check(values: Sequence[Any]) -> None:
    """Raise UnsupportedError for an input the device cannot hold; the message says what to do."""
    for value in values:
        if not isinstance(value, torch.Tensor):
            continue
        if value.layout != torch.strided:
            raise UnsupportedError(f"a {value.layout} tensor cannot run on Vulkan: call .to_dense() on it first")
        if value.is_quantized:
            raise UnsupportedError("a quantized tensor cannot run on Vulkan: call .dequantize() on it first")
        if is_traceable_wrapper_subclass(value):
            raise UnsupportedError(
                f"a {type(value).__name__} cannot run on Vulkan: pass the plain tensors that it is made of"
            )
        if value.device.type not in ("cpu", "vulkan"):
            raise UnsupportedError(
                f"a tensor on {value.device} cannot take part in a Vulkan graph: move it to 'cpu' or 'vulkan'"
            )


def belongs_on_cpu(module: fx.GraphModule, values: Sequence[Any]) -> bool:
    """Whether the graph computes on CPU tensors alone: its inputs, or without any what its factories make."""
    stay = numbers(module.graph)
    found = devices([v for i, v in enumerate(values) if i not in stay])
    if found:
        return found == {"cpu"}
    return "cpu" in devices([n.meta.get("example_value") for n in module.graph.nodes if n.op != "placeholder"])


# Fake inputs ---------------------------------------------------------------------------------------------


def on_device(values: Sequence[Any], stay: frozenset[int] = frozenset()) -> list[Any]:
    """The fake tensors of ``values`` again, on the device, but for the positions in ``stay``.

    Aliases of one storage stay aliases, and what is no leaf of the autograd graph stays none (AOTAutograd writes to
    leaves behind autograd's back).
    """
    storages: dict[int, torch.UntypedStorage] = {}
    shared = _shared_storages(values)
    # Dynamo hands its backend a new mode. Fakes of another would be converted one by one, and their storages cut.
    context = torch._guards.TracingContext.try_get()
    result = []
    for i, value in enumerate(values):
        if not isinstance(value, FakeTensor) or i in stay:
            result.append(value)
            continue
        mode = context.fake_mode if context is not None and context.fake_mode is not None else value.fake_mode
        with mode, torch.no_grad():
            key = value.untyped_storage()._cdata
            if key in shared:
                if key not in storages:
                    storages[key] = torch.empty(shared[key], dtype=torch.uint8, device=DEVICE).untyped_storage()
                # No view to autograd, as mirrors are none: AOTAutograd wants one base for all of them or none.
                moved = torch.empty(0, dtype=value.dtype, device=DEVICE)
                moved.set_(storages[key], value.storage_offset(), value.size(), value.stride())
            else:
                moved = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=DEVICE)
        moved.requires_grad_(value.requires_grad)
        if value.requires_grad and not value.is_leaf:
            with mode, torch.enable_grad():
                moved = torch._C._functions.DelayedError("an example input has no history", 1)(moved)
        result.append(moved)
    return result


def _shared_storages(values: Sequence[Any]) -> dict[int, Any]:
    """storage -> bytes, for the storages that more than one input looks into."""
    seen: dict[int, int] = {}
    sizes: dict[int, Any] = {}
    for value in values:
        if isinstance(value, FakeTensor):
            key = value.untyped_storage()._cdata
            seen[key] = seen.get(key, 0) + 1
            sizes[key] = value.untyped_storage().nbytes()
    return {key: sizes[key] for key, count in seen.items() if count > 1}


# Outputs -------------------------------------------------------------------------------------------------


def output_nodes(module: fx.GraphModule) -> list[Any]:
    """The graph's outputs, flat, as Dynamo writes them."""
    (outputs,) = next(n for n in reversed(module.graph.nodes) if n.op == "output").args
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def host_outputs(module: fx.GraphModule) -> tuple[bool, ...]:
    """For each output whether it belongs on the CPU (a graph of CPU tensors may move one to "vulkan" itself)."""
    return tuple("vulkan" not in devices([_example(node)]) for node in output_nodes(module))


def _example(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, fx.Node) else node


def keep_output_dtypes(module: fx.GraphModule) -> None:
    """Give each output the dtype it had when Dynamo traced the graph.

    Autocast chooses dtypes by lists that differ between the CPU and the device.
    """
    node = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    outputs = []
    for output in output_nodes(module):
        value = _example(output)
        if isinstance(output, fx.Node) and isinstance(value, torch.Tensor) and value.is_floating_point():
            with module.graph.inserting_before(node):
                output = module.graph.call_method("to", (output, value.dtype))
        outputs.append(output)
    node.args = (tuple(outputs),)


# Moving --------------------------------------------------------------------------------------------------


def move(module: fx.GraphModule) -> None:
    """Move ``module``'s constants, parameters and ``device=`` arguments to the device, in place."""
    for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        moved = tensor.detach().to(DEVICE)
        if isinstance(tensor, torch.nn.Parameter):
            moved = torch.nn.Parameter(moved, tensor.requires_grad)
        setattr(module, name, moved)
    for child in module.children():
        if isinstance(child, fx.GraphModule):
            move(child)
        else:
            child.to(DEVICE)
    for node in module.graph.nodes:
        if node.op == "get_attr":
            _move_constant(module, str(node.target))
            continue
        node.args = map_aggregate(node.args, _move_argument)
        node.kwargs = map_aggregate(node.kwargs, _move_argument)
        if node.op == "call_method" and node.target == "cpu":
            _stay(node)
        elif node.op == "call_function" and _is_factory(node) and node.kwargs.get("device") is None:
            # Factories put their result on the default device unless told: say it.
            node.kwargs = {**node.kwargs, "device": DEVICE}
    module.recompile()


def _stay(node: fx.Node) -> None:
    """``x.cpu()`` of a CPU tensor is ``x`` itself; of a tensor on the device, a copy."""
    node.target = "to"
    node.args = (node.args[0], DEVICE)
    node.kwargs = {"copy": True} if "vulkan" in devices([_example(node.args[0])]) else {}


def _move_constant(module: fx.GraphModule, target: str) -> None:
    owner_name, _, attribute = target.rpartition(".")
    owner = module.get_submodule(owner_name)
    value = getattr(owner, attribute, None)
    if isinstance(value, torch.Tensor) and value.device.type == "cpu":
        setattr(owner, attribute, value.to(DEVICE))


def _move_argument(argument: Any) -> Any:
    if isinstance(argument, torch.device) and argument.type == "cpu":
        return DEVICE
    return "vulkan" if isinstance(argument, str) and argument in ("cpu", "cpu:0") else argument


def _is_factory(node: fx.Node) -> bool:
    """Whether a call takes ``device=`` and has no tensor to take a device from."""
    if node.target is torch.normal:
        return not isinstance(node.args[0], fx.Node)
    return node.target in _factories()


@functools.cache
def _factories() -> frozenset[Callable[..., Any]]:
    from torch.utils import _device

    return frozenset(_device._device_constructors())
