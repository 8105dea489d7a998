"""A hash of what a Python function does, as far as it can be seen: what cached graphs depend on.

Code, constants, defaults, what its closure holds, and the functions and plain values it names in its module. What is
behind other objects, and inside of imported packages, is not seen: ``version=`` of a registration is for that.
"""

from __future__ import annotations

import hashlib
import types
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def fingerprint(*values: Any) -> str:
    """The hash of functions and of what repr() tells apart."""
    seen: set[int] = set()
    return hashlib.sha256(repr([_described(value, seen) for value in values]).encode()).hexdigest()


def _described(value: Any, seen: set[int]) -> Any:
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        parts = [_described(v, seen) for v in value]
        return sorted(map(repr, parts)) if isinstance(value, (set, frozenset)) else parts
    if isinstance(value, dict):
        return [(repr(k), _described(v, seen)) for k, v in value.items()]
    if id(value) in seen:
        return "again"
    if isinstance(value, types.FunctionType):
        seen.add(id(value))
        return _function(value, seen)
    if isinstance(value, types.CodeType):
        return _code(value, seen)
    if hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
        return [_described(part, seen) for part in (value.func, value.args, value.keywords)]
    wrapped = getattr(value, "__func__", None)
    if wrapped is not None:
        return _described(wrapped, seen)
    return f"{type(value).__module__}.{type(value).__qualname__} {getattr(value, '__name__', '')}"


def _function(function: Any, seen: set[int]) -> Any:
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(_described(cell.cell_contents, seen))
        except ValueError:  # not assigned yet
            cells.append("empty")
    names = [name for code in _codes(function.__code__) for name in code.co_names]
    module = function.__globals__
    used = [
        (name, _described(module[name], seen))
        for name in dict.fromkeys(names)
        if name in module and _is_seen(module[name])
    ]
    return [_code(function.__code__, seen), _described(function.__defaults__, seen), cells, used]


def _is_seen(value: Any) -> bool:
    return isinstance(value, (types.FunctionType, *_PLAIN)) and not str(getattr(value, "__module__", "")).startswith(
        "torch"
    )


def _code(code: types.CodeType, seen: set[int]) -> Any:
    return [code.co_code.hex(), code.co_names, [_described(c, seen) for c in code.co_consts]]


def _codes(code: types.CodeType) -> list[types.CodeType]:
    inner = [c for constant in code.co_consts if isinstance(constant, types.CodeType) for c in _codes(constant)]
    return [code, *inner]
