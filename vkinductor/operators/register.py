"""Registering operators: in other torch operators (``register_lowering``) or in GLSL (``register_kernel``).

Owns what torch has to know of them (schema, fake, gradient, kernels for device and CPU) and the rules about registering
one twice. Compiled graphs and eager operators reach them through the same tables as the package's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from vkinductor.device import eager
from vkinductor.device.registry import registry
from vkinductor.runtime.errors import OperatorError

from .entry import Entry, Glsl, Rule, Rules, takes
from .fingerprint import fingerprint

_NAME = re.compile(r"\w+::\w+(\.\w+)?")
_STYLES = ("elementwise", "workgroup")


def register_lowering(op: Any, fn: Callable[..., Any], *, version: str = "", replace: bool = False) -> Any:
    """See ``vkinductor.register_lowering``."""
    found = _existing(op)
    if not callable(fn):
        raise OperatorError(f"register_lowering({found}): fn is a function of other torch operators, not {fn!r}")
    count = len(found._schema.arguments)
    positional = sum(not a.kwarg_only for a in found._schema.arguments)
    if not takes(fn, positional) and not takes(fn, count):
        raise OperatorError(f"register_lowering({found}): fn does not take the arguments of {found._schema}")
    if _has(found, "CompositeImplicitAutograd"):
        raise OperatorError(
            f"register_lowering({found}): torch takes this operator apart before any backend sees it; register the "
            "operators that it is made of"
        )
    entry = Entry(found, fingerprint("lowering", found.name(), fn, version), function=fn)
    if _add(entry, replace):
        _serve(found, None)
    return found


def register_kernel(
    op: Any,
    glsl: str,
    *,
    style: str = "elementwise",
    shape: str | Rule | None = None,
    dtype: str | torch.dtype | Rule | None = None,
    dtypes: Mapping[str, Collection[torch.dtype]] | None = None,
    ranks: Mapping[str, int | tuple[int, int]] | None = None,
    check: Rule | None = None,
    preamble: str = "",
    workgroup: int | None = None,
    groups: Rule | None = None,
    backward: Rule | None = None,
    setup_context: Rule | None = None,
    reference: Rule | None = None,
    version: str = "",
    replace: bool = False,
) -> Any:
    """See ``vkinductor.register_kernel``."""
    _check_text(op, glsl, style, groups)
    rules = Rules(shape, dtype, dict(dtypes or {}), dict(ranks or {}), check)
    kernel = Glsl(glsl, style, preamble, workgroup, groups)
    identity = fingerprint(
        "kernel", str(op), glsl, style, preamble, workgroup, groups, shape, dtype, check, version,
        sorted((name, sorted(map(str, allowed))) for name, allowed in rules.dtypes.items()),
        sorted(rules.ranks.items()),
    )  # fmt: skip
    found, is_new = _declared(op)
    entry = Entry(found, identity, None, kernel, rules, backward, setup_context, reference)
    _check_schema(entry)
    if _add(entry, replace):
        _serve(found, entry)
        _declare(entry, is_new)
    return found


# Registering once -------------------------------------------------------------------------------------------


def _add(entry: Entry, replace: bool) -> bool:
    """Keep an entry. False when the very same is there already.

    Raises OperatorError for another registration of the operator, unless that is to be replaced.
    """
    with registry.lock:
        known = registry.operators.get(entry.name)
        if known is not None and known.identity == entry.identity:
            registry.operators[entry.name] = entry  # its functions may be new objects of the same code
            return False
        if known is not None and not replace:
            raise OperatorError(f"{entry.name} is registered already, differently: pass replace=True to change it")
        registry.operators[entry.name] = entry
    forget = getattr(registry.compile_op, "forget", None)
    if forget is not None:
        forget(entry.op)
    return known is None


# What the operator is ---------------------------------------------------------------------------------------


def _existing(op: Any) -> Any:
    """The OpOverload of an overload, a packet, a torch.library.custom_op or a name. Raises OperatorError."""
    inner = getattr(op, "_opoverload", None)  # a torch.library.custom_op
    if inner is not None:
        return inner
    if isinstance(op, torch._ops.OpOverload):
        return op
    if isinstance(op, str):
        if not _NAME.fullmatch(op):
            raise OperatorError(f"{op!r} is no operator's name: it reads namespace::name or namespace::name.overload")
        name, _, overload = op.partition(".")
        namespace, _, base = name.partition("::")
        try:
            op = getattr(getattr(torch.ops, namespace), base)
            return getattr(op, overload) if overload else _only(op)
        except AttributeError:
            raise OperatorError(
                f"there is no operator {op}: declare it with torch.library, or give register_kernel its schema"
            ) from None
    if isinstance(op, torch._ops.OpOverloadPacket):
        return _only(op)
    raise OperatorError(f"{op!r} is no operator: pass torch.ops.namespace.name, its name, or a torch.library.custom_op")


def _only(packet: Any) -> Any:
    # torch's script has overloads that its dispatcher does not know.
    names = [n for n in packet.overloads() if torch._C._dispatch_has_kernel(getattr(packet, n).name())]
    if "default" in names or len(names) == 1:
        return getattr(packet, "default" if "default" in names else names[0])
    raise OperatorError(f"{packet} has the overloads {', '.join(names)}: name one")


def _declared(op: Any) -> tuple[Any, bool]:
    """(the operator, whether it was declared here). A schema declares it."""
    if not isinstance(op, str) or "(" not in op:
        return _existing(op), False
    try:
        schema = torch._C.parse_schema(op)
    except RuntimeError as error:
        raise OperatorError(f"{op!r} is no schema: {str(error).splitlines()[0]}") from None
    namespace, _, base = schema.name.partition("::")
    if not base:
        raise OperatorError(f"{op!r} has no namespace: it reads namespace::name(...) -> Tensor")
    overload = schema.overload_name or "default"
    packet = getattr(getattr(torch.ops, namespace), base, None)
    if packet is not None and overload in packet.overloads():
        found = getattr(packet, overload)
        if str(found._schema) != str(schema):
            raise OperatorError(f"there is an operator {schema.name} already, with another schema: {found._schema}")
        return found, schema.name in registry.operators
    _library(namespace).define(op.partition("::")[2])
    return getattr(getattr(getattr(torch.ops, namespace), base), overload), True


def _library(namespace: str) -> torch.library.Library:
    library = torch.library.Library(namespace, "FRAGMENT")
    registry.libraries.append(library)
    return library


def _has(op: Any, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))


def _check_text(op: Any, glsl: str, style: str, groups: Any) -> None:
    if style not in _STYLES:
        raise OperatorError(f"register_kernel({op}): style is one of {', '.join(_STYLES)}, not {style!r}")
    if not isinstance(glsl, str) or not glsl.strip():
        raise OperatorError(f"register_kernel({op}): glsl is the text of the kernel")
    if style == "elementwise" and not re.search(r"\bvalue\b", glsl):
        raise OperatorError(f"register_kernel({op}): an elementwise kernel assigns an element of the result to `value`")
    if style == "workgroup" and not re.search(r"\bstore\s*\(", glsl):
        raise OperatorError(f"register_kernel({op}): a workgroup kernel stores with {{{{ store(position, value) }}}}")
    if style == "elementwise" and groups is not None:
        raise OperatorError(f"register_kernel({op}): groups= is for style='workgroup'")


def _check_schema(entry: Entry) -> None:
    schema, rules = entry.op._schema, entry.rules
    names = [a.name for a in schema.arguments]
    if schema.is_mutable or len(schema.returns) != 1 or str(schema.returns[0].type) != "Tensor":
        raise OperatorError(f"{entry.name}: a kernel makes one new tensor, which {schema} does not say")
    types = {a.name: str(a.type) for a in schema.arguments}
    if "Tensor" not in types.values():
        raise OperatorError(f"{entry.name}: a kernel has an argument that is a tensor, in {schema}")
    for name, kind in types.items():
        if "Tensor" in kind and kind not in ("Tensor", "Optional[Tensor]"):
            raise OperatorError(f"{entry.name}: argument {name!r} is {kind}; tensors are arguments one by one")
    for name in (*rules.dtypes, *rules.ranks, *(r for r in (rules.shape, rules.dtype) if isinstance(r, str))):
        if name not in names:
            raise OperatorError(f"{entry.name} has no argument {name!r}; it has {', '.join(names)}")
    assert entry.kernel is not None
    given = {"shape": rules.shape, "dtype": rules.dtype, "check": rules.check, "groups": entry.kernel.groups}
    for what, rule in given.items():
        if callable(rule) and not takes(rule, len(names)):
            raise OperatorError(f"{entry.name}: {what}= does not take the arguments ({', '.join(names)})")
    if entry.setup_context is not None and entry.backward is None:
        raise OperatorError(f"{entry.name}: setup_context= is for backward=, which is not given")


# What torch has to know -------------------------------------------------------------------------------------


def _serve(op: Any, entry: Entry | None) -> None:
    """Let eager calls on the device, and Inductor's lowering, reach the operator's entry."""
    from vkinductor import codegen

    codegen.register()
    if entry is not None:
        from vkinductor.codegen import custom

        custom.install(op)
    composed = any(_has(op, key) for key in ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"))
    if (entry is None and not composed) or _has(op, "PrivateUse1"):
        return

    def on_device(*args: Any, **kwargs: Any) -> Any:
        known = registry.operators[op.name()]
        if known.kernel is not None:
            known.check(known.bind(args, kwargs))
        return eager.dispatch(op, *args, **kwargs)

    namespace, _, name = op.name().partition("::")
    _library(namespace).impl(name, on_device, "PrivateUse1")


def _declare(entry: Entry, is_new: bool) -> None:
    """Fake, CPU kernel and gradient. They look the entry up at each call: it may be replaced."""
    op, name = entry.op, entry.name

    def known() -> Entry:
        return registry.operators[name]

    def fake(*args: Any, **kwargs: Any) -> torch.Tensor:
        bound = known().bind(args, kwargs)
        try:
            known().check(bound)
        except OperatorError:
            # Dynamo would wrap it: the lowering checks again, and its errors keep their type.
            if torch._guards.TracingContext.try_get() is None:
                raise
        return known().result(bound)

    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        known().check(known().bind(args, kwargs))
        reference = known().reference
        if reference is None:
            raise OperatorError(
                f"{name} has no kernel for the CPU: move its tensors to 'vulkan', or register it with reference="
            )
        return reference(*args, **kwargs)

    namespace, _, base = name.partition("::")
    if is_new:
        torch.library.register_fake(name, fake, lib=_library(namespace))
    if not any(_has(op, key) for key in ("CPU", "CompositeExplicitAutograd")):
        _library(namespace).impl(base, on_cpu, "CPU")
    if entry.backward is None:
        return

    def backward(context: Any, *gradients: Any) -> Any:
        rule = known().backward
        assert rule is not None
        return rule(context, *gradients)

    def setup_context(**given: Any) -> None:  # torch passes ctx, inputs, output by name
        rule = known().setup_context
        if rule is not None:
            rule(**given)

    given: dict[str, Any] = {} if entry.setup_context is None else {"setup_context": setup_context}
    torch.library.register_autograd(name, backward, lib=_library(namespace), **given)
