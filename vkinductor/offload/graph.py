"""Rewrites a Dynamo graph from the CPU to the device, before AOTAutograd sees it.

Placeholders get fake tensors on the device with the same sizes, strides, symbols and aliasing; constants and
``device=`` arguments move. What crosses at run time is call.py's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from vkinductor.runtime.errors import UnsupportedError

DEVICE = torch.device("vulkan", 0)


def devices(values: Sequence[Any]) -> set[str]:
    """Device types of the tensors among ``values``."""
    return {v.device.type for v in values if isinstance(v, torch.Tensor)}


def placeholder_values(graph: fx.Graph, example_inputs: Sequence[Any]) -> list[Any]:
    """What Dynamo knows of each input: its fake tensor or symbol (real tensors carry no symbols)."""
    nodes = [n for n in graph.nodes if n.op == "placeholder"]
    return [n.meta.get("example_value", real) for n, real in zip(nodes, example_inputs, strict=True)]


def check(values: Sequence[Any]) -> None:
    """Raise UnsupportedError for an input the device cannot hold."""
    for value in values:
        if not isinstance(value, torch.Tensor):
            continue
        if value.layout != torch.strided:
            raise UnsupportedError(f"a {value.layout} tensor cannot run on Vulkan: call .to_dense() on it first")
        if value.is_quantized:
            raise UnsupportedError("a quantized tensor cannot run on Vulkan: call .dequantize() on it first")
        if value.device.type not in ("cpu", "vulkan"):
            raise UnsupportedError(
                f"a tensor on {value.device} cannot take part in a Vulkan graph: move it to 'cpu' or 'vulkan'"
            )


def on_device(values: Sequence[Any]) -> list[Any]:
    """The fake tensors of ``values`` again, on the device: aliases of one storage stay aliases."""
    storages: dict[int, torch.Tensor] = {}
    shared = _shared_storages(values)
    result = []
    for value in values:
        if not isinstance(value, FakeTensor):
            result.append(value)
            continue
        with value.fake_mode, torch.no_grad():
            key = value.untyped_storage()._cdata
            if key in shared:
                base = storages.get(key)
                if base is None:
                    base = torch.empty(shared[key], dtype=torch.uint8, device=DEVICE)
                    storages[key] = base
                moved = torch.as_strided(
                    base.view(value.dtype), value.size(), value.stride(), value.storage_offset()
                )
            else:
                moved = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=DEVICE)
        result.append(moved.requires_grad_(value.requires_grad))
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


def move(module: fx.GraphModule) -> None:
    """Move ``module``'s constants, parameters and ``device=`` arguments to the device, in place."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        owner_name, _, attribute = name.rpartition(".")
        owner = module.get_submodule(owner_name)
        moved = tensor.detach().to(DEVICE)
        if isinstance(tensor, torch.nn.Parameter):
            moved = torch.nn.Parameter(moved, tensor.requires_grad)
        setattr(owner, attribute, moved)
    for node in module.graph.nodes:
        if node.op == "get_attr":
            _move_constant(module, str(node.target))
        node.args = tree_map(_move_argument, node.args)
        node.kwargs = tree_map(_move_argument, node.kwargs)
        if node.op == "call_method" and node.target == "cpu":
            node.target = "clone"
        for child in module.children():
            if isinstance(child, fx.GraphModule):
                move(child)
    _add_devices(module)
    module.recompile()


def _move_constant(module: fx.GraphModule, target: str) -> None:
    owner_name, _, attribute = target.rpartition(".")
    owner = module.get_submodule(owner_name)
    value = getattr(owner, attribute, None)
    if isinstance(value, torch.Tensor) and value.device.type == "cpu":
        setattr(owner, attribute, value.to(DEVICE))


def _move_argument(argument: Any) -> Any:
    if isinstance(argument, torch.device) and argument.type == "cpu":
        return DEVICE
    return "vulkan" if isinstance(argument, str) and argument == "cpu" else argument


# Factories put their result on the default device unless told: say it.
_FACTORIES = frozenset(
    getattr(torch, name)
    for name in (
        "arange", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "ones", "rand", "randint",
        "randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
    )
)  # fmt: skip


def _add_devices(module: fx.GraphModule) -> None:
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in _FACTORIES and node.kwargs.get("device") is None:
            node.kwargs = {**node.kwargs, "device": DEVICE}


def mutated(module: fx.GraphModule, values: Sequence[Any]) -> tuple[int, ...]:
    """Positions of the inputs whose data ``module`` changes in place (found by running it on fakes)."""
    fakes = [v for v in values if isinstance(v, FakeTensor)]
    if not fakes:
        return ()
    copies = on_device(values)
    before = [c._version if isinstance(c, torch.Tensor) else 0 for c in copies]
    with fakes[0].fake_mode as mode, torch.no_grad(), _without_symbols(mode.shape_env):
        fx.Interpreter(module).run(*copies)
    return tuple(
        i
        for i, (copy, version) in enumerate(zip(copies, before, strict=True))
        if isinstance(copy, torch.Tensor) and copy._version != version
    )


@contextlib.contextmanager
def _without_symbols(shape_env: Any) -> Iterator[None]:
    """Unbacked symbols made in a trial run are nobody's."""
    if shape_env is None:
        yield
        return
    with shape_env.ignore_fresh_unbacked_symbols():
        yield
