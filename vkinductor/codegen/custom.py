"""Kernels that users write in GLSL, as template nodes: what their text may name, and how it becomes a kernel.

Owns the vocabulary of the text (operands by name, sizes, strides, numbers, the result) and the two skeletons it goes
into. Declaring the operator, checking its arguments and differentiating it are `operators`'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir, lowering
from torch._inductor.ir import FixedLayout, TensorBox
from torch._inductor.utils import ceildiv, sympy_product, upcast_compute_type
from torch._inductor.virtualized import V

from vkinductor.device.registry import registry
from vkinductor.runtime.errors import OperatorError
from vkinductor.templates import render_text

from .template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel, realized
from .types import glsl_type, is_float, literal

# Invocations of a workgroup where the user names no number.
WORKGROUP = 64


class Shape:
    """Sizes as GLSL: ``{{ x.size(0) }}``, ``{{ x.numel }}``, ``{{ x.ndim }}``, ``{{ x.dtype }}``."""

    def __init__(self, kernel: VulkanTemplateKernel, sizes: Sequence[Any], dtype: torch.dtype) -> None:
        self._kernel, self._sizes = kernel, list(sizes)
        self.ndim = len(self._sizes)
        self.dtype = str(dtype).removeprefix("torch.")
        # The type that a value has in the shader.
        self.register = glsl_type(upcast_compute_type(dtype)).register

    def size(self, dim: int) -> str:
        """A size; dimensions count from the end when negative."""
        return self._kernel.size(self._sizes[dim])

    @property
    def numel(self) -> str:
        """The number of elements."""
        return self._kernel.size(sympy_product(self._sizes))


class Operand(Shape):
    """A tensor argument: ``{{ x }}`` is its element at the result's coordinates, broadcast; ``{{ x("i", "j") }}`` the
    element at others; ``{{ x.stride(0) }}`` a stride in elements."""

    def __init__(self, kernel: VulkanTemplateKernel, position: int, rank: int | None) -> None:
        operand = kernel.inputs[position]
        super().__init__(kernel, operand.get_size(), operand.get_dtype())
        self._strides = list(operand.get_layout().stride)
        self._position = position
        self._rank = rank

    def stride(self, dim: int) -> str:
        """A stride in elements."""
        return self._kernel.size(self._strides[dim])

    def __call__(self, *coordinates: Any) -> str:
        """GLSL of the element at coordinates, which are GLSL expressions or ints."""
        if len(coordinates) != self.ndim:
            raise OperatorError(f"{self.ndim} coordinates are needed, {len(coordinates)} are given")
        index = self._kernel.index_dtype
        terms = [
            f"{index}({coordinate}) * {self.stride(dim)}"
            for dim, coordinate in enumerate(coordinates)
            if self._strides[dim] != 0
        ]
        place = " + ".join(terms) or "0"
        return f"({self._kernel.operand(self._position)(f'({place})')})"

    def __str__(self) -> str:
        if self._rank is None:
            raise OperatorError('a kernel of whole workgroups names coordinates: {{ x("i", "j") }}')
        known = V.graph.sizevars.statically_known_equals
        first = self._rank - self.ndim
        if first < 0:
            raise OperatorError(f"{self.ndim} dimensions do not broadcast to the result's {self._rank}")
        return self(*(0 if known(size, 1) else f"i{first + dim}" for dim, size in enumerate(self._sizes)))


def _names(
    entry: Any, kernel: VulkanTemplateKernel, bound: dict[str, Any], positions: dict[str, int], rank: int | None
) -> dict[str, Any]:
    """What the text may name: its arguments, and ``out``."""
    node = kernel.node
    names: dict[str, Any] = {"out": Shape(kernel, node.get_size(), node.get_dtype())}
    dtype = upcast_compute_type(node.get_dtype())
    for name, value in bound.items():
        names[name] = Operand(kernel, positions[name], rank) if name in positions else _number(kernel, value, dtype)
    return names


def _number(kernel: VulkanTemplateKernel, value: Any, dtype: torch.dtype) -> Any:
    """An argument that is no tensor, as GLSL; None, texts and dtypes as they are, for Jinja to choose by."""
    if isinstance(value, (list, tuple)):
        return [_number(kernel, v, dtype) for v in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        return literal(value, dtype if is_float(dtype) else torch.float32)
    if isinstance(value, int):
        return str(value)
    return kernel.size(value) if isinstance(value, sympy.Expr) else value


def _plan(entry: Any, bound: dict[str, Any], positions: dict[str, int], groups: Any) -> Callable[[Any], Any]:
    """The plan of a template node (see VulkanTemplateBuffer)."""
    source = entry.kernel

    def plan(kernel: VulkanTemplateKernel) -> tuple[str, dict[str, Any], Any]:
        sizes = list(kernel.node.get_size())
        elementwise = source.style == "elementwise"
        names = _names(entry, kernel, bound, positions, len(sizes) if elementwise else None)
        workgroup = source.workgroup or min(WORKGROUP, kernel.device_info.limits.max_workgroup_invocations)
        register = names["out"].register
        stores: list[tuple[str, str]] = []

        def store(position: Any, value: Any) -> str:
            stores.append((str(position), str(value)))
            return f"@store{len(stores) - 1}@"

        given = {**names, "workgroup": workgroup, "index": kernel.index_dtype}
        if not elementwise:
            given["store"] = store
        text = _rendered(entry, source.glsl, given)
        preamble = _rendered(entry, source.preamble, given, "preamble") if source.preamble else ""

        def user(lines: list[str]) -> str:
            whole = text
            for i, (position, value) in enumerate(stores):
                head = f"const {kernel.index_dtype} xindex = {kernel.index_dtype}({position});"
                block = "\n".join([f"{{ {head} const {register} value = {register}({value});", *lines, "}"])
                whole = whole.replace(f"@store{i}@", block)
            return whole

        total = sympy_product(sizes)
        count = ceildiv(total, workgroup) if groups is None else groups
        context = {
            "workgroup": workgroup,
            "preamble": preamble,
            "register": register,
            "user": user,
            "numel": f"{kernel.index_dtype}({kernel.size(total)})",
            "groups": f"{kernel.index_dtype}({kernel.size(sympy.sympify(count))})",
            "coordinates": _coordinates(kernel, sizes) if elementwise else [],
        }
        return f"custom_{source.style}.glsl.jinja", context, count

    return plan


def _rendered(entry: Any, text: str, names: dict[str, Any], part: str = "GLSL") -> str:
    import jinja2

    try:
        return render_text(text, f"line {{}} of the {part} of {entry.name}", **names)
    except jinja2.TemplateSyntaxError as error:
        raise OperatorError(f"line {error.lineno} of the {part} of {entry.name}: {error.message}") from None
    except (jinja2.TemplateError, OperatorError, IndexError, TypeError) as error:
        raise OperatorError(
            f"the {part} of {entry.name} cannot be filled in: {error}. It may name {', '.join(names)}"
        ) from None


def _coordinates(kernel: VulkanTemplateKernel, sizes: list[Any]) -> list[str]:
    """Declarations of the result's coordinates i0, i1, ... from its flat position."""
    lines = []
    inner: Any = sympy.S.One
    for dim in reversed(range(len(sizes))):
        quotient = "xindex" if inner == 1 else f"(xindex / {kernel.size(inner)})"
        rest = quotient if dim == 0 else f"({quotient} % {kernel.size(sizes[dim])})"
        lines.append(f"const {kernel.index_dtype} i{dim} = {rest};")
        inner = inner * sizes[dim]
    return lines[::-1]


def install(op: Any) -> None:
    """Let Inductor lower ``op`` to its kernel for tensors of this device, and to the operator itself for others."""
    if getattr(lowering.lowerings.get(op), "vkinductor", False):
        return
    otherwise = lowering.lowerings.get(op) or lowering.fallback_handler(op, add_to_fallback_set=False)

    def lower(*args: Any, **kwargs: Any) -> Any:
        device = next((a.get_device() for a in args if isinstance(a, ir.IRNode)), None)
        entry = registry.operators.get(str(op.name()))
        if device is None or device.type != "vulkan" or entry is None or entry.kernel is None:
            return otherwise(*args, **kwargs)
        return _lower(entry, args, kwargs)

    lower.vkinductor = True  # type: ignore[attr-defined]
    lowering.lowerings[op] = lower


def _lower(entry: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TensorBox:
    node = V.graph.current_node

    def value(argument: Any) -> Any:
        return torch.fx.map_arg(argument, lambda n: n.meta["val"])

    fakes = entry.bind(value(node.args), value(node.kwargs))
    entry.check(fakes)
    result = node.meta["val"]
    bound = entry.bind(args, kwargs)
    positions = {name: i for i, name in enumerate(n for n, v in bound.items() if isinstance(v, ir.IRNode))}
    inputs = [realized(bound[name]) for name in positions]
    groups = entry.kernel.groups
    count = None if groups is None else _expression(entry.call(groups, fakes))
    sizes = [_expression(s) for s in result.size()]
    if any(V.graph.sizevars.statically_known_equals(s, 0) for s in sizes):
        return lowering.full(sizes, 0, dtype=result.dtype, device=inputs[0].get_device())
    # A single element is computed as one of a row: templates have loops over dimensions.
    strides = [_expression(s) for s in result.stride()] or [sympy.S.One]
    layout = FixedLayout(inputs[0].get_device(), result.dtype, sizes or [sympy.S.One], strides)
    name = entry.name.replace("::", "_")
    box = TensorBox.create(VulkanTemplateBuffer(layout, inputs, _plan(entry, bound, positions, count), name=name))
    return box if sizes else lowering.lowerings[torch.ops.aten.view.default](box, [])


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(int(size))
