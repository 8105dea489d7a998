"""Which inputs a graph writes.

Found by running the graph once on fake tensors of its own, with the sizes Dynamo saw, and looking at the schema of
every operator that comes by. That sees writes through views, aliases and ``.data``, which version counters do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

# Stands for a size that has no value yet.
_UNKNOWN_SIZE = 2


class _Writes(TorchDispatchMode):
    """Notes the storages that operators write."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = getattr(func, "_schema", None)
        # An operator that is "in place" on the shape alone writes no data.
        if schema is not None and schema.is_mutable and torch.Tag.inplace_view not in func.tags:
            for i, argument in enumerate(schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self._note(args[i] if i < len(args) else kwargs.get(argument.name))
        return func(*args, **kwargs)

    def _note(self, value: Any) -> None:
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor):
                self.storages.add(tensor.untyped_storage()._cdata)


def written(module: fx.GraphModule, values: Sequence[Any]) -> frozenset[int]:
    """Positions of the inputs whose memory ``module`` writes, for inputs like ``values`` (fake tensors and symbols)."""
    if not any(isinstance(v, FakeTensor) for v in values):
        return frozenset()
    writes = _Writes()
    # A shape environment of its own: symbols that the trial makes are nobody's. The Python dispatcher takes batch_norm
    # apart, whose schema does not say that it writes.
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    inputs = _stand_ins(values, mode)
    with mode, torch.no_grad(), enable_python_dispatcher(), writes:
        fx.Interpreter(module).run(*inputs)
    return frozenset(
        i
        for i, value in enumerate(inputs)
        if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata in writes.storages
    )


def _stand_ins(values: Sequence[Any], mode: FakeTensorMode) -> list[Any]:
    """Fakes of ``mode`` with concrete sizes; inputs that share a storage do so again."""
    storages: dict[int, torch.UntypedStorage] = {}
    result: list[Any] = []
    for value in values:
        if not isinstance(value, FakeTensor):
            if isinstance(value, torch.Tensor):
                number = value.item()
                with mode:
                    value = torch.tensor(number, dtype=value.dtype)  # a fake that knows its value
            result.append(_number(value))
            continue
        key = value.untyped_storage()._cdata
        with mode, torch.no_grad():
            size = [_number(n) for n in value.size()]
            stride = [_number(n) for n in value.stride()]
            if key not in storages:
                nbytes = int(_number(value.untyped_storage().nbytes()))
                storages[key] = torch.empty(nbytes, dtype=torch.uint8, device=value.device).untyped_storage()
            fake = torch.empty(0, dtype=value.dtype, device=value.device)
            fake.set_(storages[key], int(_number(value.storage_offset())), size, stride)
        result.append(fake.requires_grad_(value.requires_grad))
    return result


def _number(value: Any) -> Any:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.hint if value.node.has_hint() else _UNKNOWN_SIZE
    return value
