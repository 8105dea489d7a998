"""Every private part of Inductor and Dynamo that this package changes, in one place.

Tried on torch 2.11, 2.13 and 2.14. ``check`` runs at registration and names what a torch version lacks.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import sympy
import torch
from torch._inductor import optimize_indexing
from torch.utils import _config_module

from vkinductor.runtime.errors import UnsupportedError

TESTED = ("2.11", "2.12", "2.13", "2.14")

# module, attribute: what the patches below and the subclasses lean on.
_NEEDED = (
    ("torch._inductor.utils", "GPU_TYPES"),
    ("torch._inductor.scheduler", "Scheduler.create_backend"),
    ("torch._inductor.scheduler", "Scheduler.should_partition"),
    ("torch._inductor.scheduler", "Scheduler.graph_partition"),
    ("torch._inductor.graph", "GraphLowering.decide_layout_opt"),
    ("torch._inductor.output_code", "set_tracing_context_output_strides"),
    ("torch.fx.experimental.symbolic_shapes", "ShapeEnv.deserialize_symexpr"),
    ("torch._inductor.ir", "Scan.create"),
    ("torch._inductor.ir", "Scan.num_splits"),
    ("torch._inductor.ir", "Reduction.create_multilayer"),
    ("torch._inductor.scheduler", "Scheduler.codegen_extern_call"),
    ("torch._inductor.scheduler", "Scheduler.fuse_nodes"),
    ("torch._inductor.scheduler", "SchedulerNode.cancel_reduction_split"),
    ("torch.utils._config_module", "_ConfigEntry"),
    ("torch._inductor.codegen.simd", "SIMDKernel.codegen_iteration_ranges_entry"),
    ("torch._inductor.codegen.simd", "SIMDScheduling.codegen_node_schedule"),
    ("torch._inductor.codegen.common", "register_backend_for_device"),
    ("torch._inductor.codegen.wrapper", "PythonWrapperCodegen.make_allocation"),
    ("torch._inductor.dtype_propagation", "promote_types"),
    ("torch._inductor.fx_passes.post_grad", "prepare_softmax_extra_check"),
    ("torch.fx.experimental.symbolic_shapes", "ShapeEnv.produce_guards_expression"),
    ("torch._dynamo.device_interface", "register_interface_for_device"),
    ("torch._dynamo.trace_rules", "add"),
    ("torch._dynamo.convert_frame", "register_bytecode_hook"),
    ("torch._dynamo.guards", "DeletedGuardManagerWrapper"),
    ("torch.nn.attention.flex_attention", "_validate_device"),
    ("torch._inductor.subgraph_lowering", "PointwiseSubgraphLowering"),
    ("torch._inductor.dependencies", "_RecordLoadStoreInner._normalize"),
)
# module, class, attribute that its __init__ gives each instance.
_NEEDED_OF_INSTANCES = (("torch._inductor.codegen.common", "CSE", "varname_map"),)


_ENTRIES_HAVE_NAMES = "name" in inspect.signature(cast(Any, _config_module)._ConfigEntry.__init__).parameters

# torch 2.13 on: Inductor marks the index expressions that are used as values.
HAS_VALUE_EXPR = hasattr(optimize_indexing, "convert_index_expr_to_value_expr")


def mark_value_expressions(body: Any) -> None:
    """Let Inductor mark them in a loop body that does not go through its own kernel loop."""
    mark = getattr(optimize_indexing, "convert_index_expr_to_value_expr", None)
    if mark is not None:
        mark(body)


def check() -> None:
    """Raise UnsupportedError that names what this torch lacks of the interfaces built on."""
    import importlib

    missing = []
    for module, path, *attribute in (*_NEEDED, *_NEEDED_OF_INSTANCES):
        try:
            found: Any = functools.reduce(getattr, path.split("."), importlib.import_module(module))
            there = not attribute or attribute[0] in found.__init__.__code__.co_names
        except (ImportError, AttributeError):
            there = False
        if not there:
            missing.append(".".join((module, path, *attribute)))
    if missing:
        raise UnsupportedError(
            f"torch {torch.__version__} lacks {', '.join(missing)}. vkinductor is known to work with torch "
            f"{', '.join(TESTED)}: install one of these."
        )


def variable(kernel: Any, name: str) -> Any:
    """The variable of ``kernel`` that is called ``name`` in its text; None if there is none."""
    return kernel.cse.varname_map.get(name)


def name_sizes(inputs: Mapping[str, Any]) -> None:
    """Let the program being written know all sizes and strides of its ``inputs`` by their symbols.

    torch 2.14 names those that an operator of the graph asks for, or that it asserts.
    """
    from torch._inductor.ir import TensorBox
    from torch._inductor.virtualized import V

    sources = getattr(V.graph, "symbolic_input_sources", None)
    if sources is None:
        return
    for name, value in inputs.items():
        if not isinstance(value, TensorBox):
            continue
        for kind, numbers in (("size", value.get_size()), ("stride", value.get_stride())):
            for place, expr in enumerate(numbers):
                if isinstance(expr, sympy.Symbol) and sources.get(expr, ("",))[0] not in inputs:
                    sources[expr] = (name, kind, place)


def size_hint(expr: Any) -> int:
    """A likely value of a size (itself when static); a kernel's layout may depend on it, its result never."""
    from torch._inductor.virtualized import V

    if isinstance(expr, (int, sympy.Integer)):
        return int(expr)
    return int(V.graph.sizevars.optimization_hint(expr, fallback=1024))


# Options of this backend that Inductor carries as settings: they are part of its cache keys, and reach the backward,
# which is compiled later and maybe on another thread. Values are what holds when nothing is given.
SETTINGS: dict[str, Any] = {
    "vulkan.fallback": "",
    "vulkan.check": "",
    "vulkan.check_bounds": False,
    "vulkan.report": 0,
    "vulkan.int8_activations": False,
    "vulkan.persistent": False,
    "vulkan.chained": "auto",
    "vulkan.tune": False,
    "vulkan.tuning_seconds": 10.0,
    "vulkan.tuning_problems": 6,
}


def add_settings() -> None:
    """Add ``SETTINGS`` to Inductor's configuration. Idempotent."""
    from torch._inductor import config

    module, parts = cast(Any, config), cast(Any, _config_module)
    if "vulkan.fallback" in module._config:
        return
    for name, default in SETTINGS.items():
        module._config[name] = parts._ConfigEntry(
            parts._Config(default=default, value_type=type(default)), *([name] if _ENTRIES_HAVE_NAMES else [])
        )
    object.__setattr__(module, "vulkan", parts.SubConfigProxy(module, "vulkan."))


def setting(name: str) -> Any:
    """The present value of a setting of ours; what holds by default before they were added."""
    from torch._inductor import config

    full = f"vulkan.{name}"
    return getattr(config, full) if full in cast(Any, config)._config else SETTINGS[full]


def mark_extern_calls(device_type: str) -> None:
    """Let the device's wrapper know before an operator is written that is none of its kernels (``enter_extern``), and
    after it (the function that this returned)."""
    from torch._inductor import scheduler
    from torch._inductor.virtualized import V

    original = scheduler.Scheduler.codegen_extern_call
    if getattr(original, "vkinductor", False):
        return

    @functools.wraps(original)
    def codegen_extern_call(self: Any, scheduler_node: Any) -> None:
        wrapper: Any = V.graph.wrapper_code
        leave = wrapper.enter_extern(scheduler_node.node) if hasattr(wrapper, "enter_extern") else None
        original(self, scheduler_node)
        if leave is not None:
            leave()

    codegen_extern_call.vkinductor = True  # type: ignore[attr-defined]
    scheduler.Scheduler.codegen_extern_call = codegen_extern_call  # type: ignore[method-assign]


def make_dtype_rules_once() -> None:
    """Keep Inductor from filling in its table of dtype rules for each operation of each kernel: once is enough as long
    as no rule is added. (5 of the 41 s, under cProfile, of a compilation of bicubic resampling's derivative.) Only
    where its parts are those of torch 2.13: nothing depends on it."""
    from torch._inductor import utils
    from torch._inductor.codegen import common

    made: Any = getattr(common, "DtypePropagationOpsHandler", None)
    rules = getattr(utils, "op_dtype_propagation_rules", None)
    pointwise = getattr(common, "pointwise_overrides_data", None)
    if not isinstance(made, type) or not hasattr(made, "_instance") or rules is None or pointwise is None:
        return
    filled: tuple[int, int] | None = None

    def handler() -> Any:
        nonlocal filled
        now = len(rules), len(pointwise)
        if filled != now or made._instance is None:
            made()
            filled = now
        return made._instance

    common.DtypePropagationOpsHandler = handler  # type: ignore[assignment,misc]


@contextlib.contextmanager
def dynamo_undisturbed() -> Iterator[None]:
    """Compile inside without a trace outside: what Dynamo compiled for the user stays, what it compiles here goes.

    Its statistics and what it learned about sizes that vary come back too. Graph caches are off meanwhile.
    """
    from torch._dynamo import convert_frame, guards, pgo, utils
    from torch._inductor import config

    dynamo: Any = convert_frame
    state: Any = pgo
    known: dict[Any, set[int]] = {}
    entries_of: Any = torch._C._dynamo.eval_frame._debug_get_cache_entry_list

    def seen(code: Any, compiled: Any) -> None:
        known.setdefault(code, {id(entry.code) for entry in entries_of(code)})

    counters = {name: dict(counts) for name, counts in utils.counters.items()}
    breaks = list(utils.graph_break_reasons)
    learned = copy.deepcopy(state._CODE_STATE)
    hook = dynamo.register_bytecode_hook(seen)
    try:
        with config.patch(force_disable_caches=True):
            yield
    finally:
        hook.remove()
        for code, before in known.items():
            for entry in list(entries_of(code)):
                manager = entry.guard_manager
                if id(entry.code) not in before and manager.extra_state is not None:
                    manager.extra_state.invalidate(entry, guards.DeletedGuardManagerWrapper("it was only explained"))
        state._CODE_STATE = learned
        utils.graph_break_reasons[:] = breaks
        utils.counters.clear()
        for name, counts in counters.items():
            utils.counters[name].update(counts)


def keep_guards_apart() -> None:
    """Put each guard of a guard expression in parentheses.

    torch (2.11 to 2.13) joins them with "and" as they are: beside one that is an "or" the others no longer count, and a
    program or a cached graph serves sizes that it was not made for.
    """
    from torch._dynamo.source import LocalSource
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    original = ShapeEnv.produce_guards_expression
    if getattr(original, "vkinductor", False):
        return

    @functools.wraps(original)
    def produce_guards_expression(
        self: Any, placeholders: Any, *, guards: Any = None, ignore_static: bool = True
    ) -> str | None:
        sources: Any = [LocalSource(f"t{i}") for i in range(len(placeholders))]
        produced = self.produce_guards(placeholders, sources, guards=guards, ignore_static=ignore_static)
        return " and ".join(f"({guard})" for guard in produced) or None

    produce_guards_expression.vkinductor = True  # type: ignore[attr-defined]
    ShapeEnv.produce_guards_expression = produce_guards_expression  # type: ignore[method-assign]


def hide_from_dynamo() -> None:
    """Keep Dynamo out of this package: it would trace the device's own Python into a user's graph, and an error from
    there (a frame that ``fullgraph`` does not allow) ends the process where torch calls the device from C++."""
    from torch._dynamo import trace_rules

    for part in ("runtime", "device", "codegen", "offload"):
        trace_rules.add(f"vkinductor.{part}")


def partition_kernels(device_type: str) -> None:
    """Let Inductor put runs of ``device_type``'s kernels into functions of their own (``config.graph_partition``).

    For other devices it goes on deciding as before.
    """
    from torch._inductor import ir, scheduler

    original = scheduler.Scheduler.should_partition
    if getattr(original, "vkinductor", False):
        return
    partition = scheduler.Scheduler.graph_partition

    def is_kernel(node: Any) -> bool:
        if isinstance(node, scheduler.FusedSchedulerNode):
            return all(map(is_kernel, node.snodes))
        if isinstance(node, scheduler.NopKernelSchedulerNode):  # a concatenation whose parts are written in place
            return True
        return isinstance(node, scheduler.SchedulerNode) and not isinstance(node.node, ir.ExternKernel)

    def belongs(node: Any) -> bool:
        device = node.get_device()
        return device is not None and device.type == device_type

    @functools.wraps(original)
    def should_partition(self: Any, node: Any, *args: Any, **kwargs: Any) -> Any:
        if not belongs(node):
            return original(self, node, *args, **kwargs)
        if not is_kernel(node):
            return f"not a {device_type} kernel"
        return "a part of a buffer that others write, too" if node in getattr(self, "vkinductor_outside", ()) else None

    @functools.wraps(partition)
    def graph_partition(self: Any, *args: Any, **kwargs: Any) -> Any:
        kernels = [belongs(node) and is_kernel(node) for node in self.nodes]
        self.vkinductor_outside = {self.nodes[i] for i in split_buffers(kernels, shared_buffers(self.nodes))}
        return partition(self, *args, **kwargs)

    should_partition.vkinductor = True  # type: ignore[attr-defined]
    scheduler.Scheduler.should_partition = should_partition  # type: ignore[method-assign]
    scheduler.Scheduler.graph_partition = graph_partition  # type: ignore[method-assign]


def decide_layouts(device_type: str, decide: Callable[[], bool]) -> None:
    """Let ``decide()`` say whether graphs with convolutions on ``device_type`` prefer channels last.

    Else what several convolutions read is laid out as torch's fake tensors are. Inductor's own decision is by figures
    of cuDNN's convolutions.
    """
    from torch._inductor.graph import GraphLowering

    original = GraphLowering.decide_layout_opt
    if getattr(original, "vkinductor", False):
        return

    @functools.wraps(original)
    def decide_layout_opt(gm: Any, *, is_inference: bool) -> bool:
        found = [n for n in gm.graph.nodes if n.target is torch.ops.aten.convolution.default]
        if found and all(n.meta["val"].device.type == device_type for n in found):
            return decide()
        return bool(original(gm, is_inference=is_inference))

    decide_layout_opt.vkinductor = True  # type: ignore[attr-defined]
    GraphLowering.decide_layout_opt = staticmethod(decide_layout_opt)  # type: ignore[method-assign]


def save_strides_that_vary(device_type: str) -> None:
    """Let what a forward on ``device_type`` saves have strides that vary with sizes where its backward is compiled.

    torch (2.11 to 2.13) fixes those that are not the traced ones to the numbers of the first sizes, without a guard:
    its own devices decide on channels last only where no size varies.
    """
    from torch._guards import TracingContext
    from torch._inductor import output_code
    from torch._inductor.utils import shape_env_from_inputs

    module = cast(Any, output_code)
    original = module.set_tracing_context_output_strides
    if getattr(original, "vkinductor", False):
        return

    def number(text: str, env: Any) -> Any:
        return int(text) if text.isdecimal() else env.deserialize_symexpr(text)

    @functools.wraps(original)
    def set_strides(example_inputs: Sequence[Any], compiled_graph: Any) -> None:
        original(example_inputs, compiled_graph)
        context, env = TracingContext.try_get(), shape_env_from_inputs(cast(Any, example_inputs))
        found: Any = None if context is None else context.output_strides
        on_device = any(isinstance(x, torch.Tensor) and x.device.type == device_type for x in example_inputs)
        if not found or env is None or not on_device:
            return
        for position, strides in enumerate(compiled_graph.output_strides):
            if strides is not None:
                found[position] = tuple(number(str(stride), env) for stride in strides)

    set_strides.vkinductor = True  # type: ignore[attr-defined]
    module.set_tracing_context_output_strides = set_strides


def replace_scans(device_type: str, create: Any) -> None:
    """Let ``create(original, **arguments)`` make the IR of scans on ``device_type``.

    Inductor's own splits long ones for Triton only, and gives up elsewhere.
    """
    from torch._inductor import ir

    original, splits = ir.Scan.create.__func__, ir.Scan.num_splits.__func__  # type: ignore[attr-defined]
    if getattr(original, "vkinductor", False):
        return

    @functools.wraps(original)
    def create_scan(cls: Any, device: torch.device, *args: Any, **kwargs: Any) -> Any:
        whole = functools.partial(original, cls)
        if device.type != device_type:
            return whole(device, *args, **kwargs)
        names = ("dtypes", "inner_fns", "size", "axis", "combine_fn", "reduction_hint")
        return create(whole, device=device, **dict(zip(names, args, strict=False)), **kwargs)

    @functools.wraps(splits)
    def num_splits(cls: Any, device: torch.device, *args: Any, **kwargs: Any) -> Any:
        if device.type == device_type:
            return ir.ReductionHint.DEFAULT, 1
        return splits(cls, device, *args, **kwargs)

    create_scan.vkinductor = True  # type: ignore[attr-defined]
    ir.Scan.create = classmethod(create_scan)  # type: ignore[method-assign, assignment]
    ir.Scan.num_splits = classmethod(num_splits)  # type: ignore[method-assign, assignment]


def shared_buffers(nodes: Sequence[Any]) -> list[set[int]]:
    """For each buffer that several nodes write parts of (a concatenation): the positions of those nodes."""
    from torch._inductor import ir

    writers: dict[str, set[int]] = {}
    for at, node in enumerate(nodes):
        for output in node.get_outputs():
            layout = output.node.get_output_spec()
            while isinstance(layout, ir.NonOwningLayout):
                base = layout.view.get_name()
                writers.setdefault(base, set()).add(at)
                layout = layout.view.get_layout()
            writers.setdefault(output.get_name(), set()).add(at)
    return [positions for positions in writers.values() if len(positions) > 1]


def split_buffers(kernels: Sequence[bool], shared: Sequence[set[int]]) -> set[int]:
    """Positions of kernels that must stay outside partitions.

    Inductor (2.11 to 2.13) allocates a buffer in each partition that writes a part of it: all its writers have to be in
    one. ``kernels``: which nodes are; ``shared``: positions of the writers of each buffer.
    """
    outside: set[int] = set()
    while True:
        number, partition = 0, []
        for at, kernel in enumerate(kernels):
            inside = kernel and at not in outside
            number += not inside
            partition.append(number if inside else -1)
        broken = {at for writers in shared if len({partition[at] for at in writers}) > 1 for at in writers}
        if broken <= outside:
            return outside
        outside |= broken


def treat_as_gpu(device_type: str) -> None:
    """Make Inductor's is_gpu() true for ``device_type``, without Triton being asked for."""
    from torch._inductor import scheduler, utils

    # get_gpu_type() probes torch.<type>.is_available() of each entry and caches its answer: ask before adding.
    utils.get_gpu_type()
    if device_type not in utils.GPU_TYPES:
        utils.GPU_TYPES.append(device_type)
    original = scheduler.Scheduler.create_backend
    if getattr(original, "vkinductor", False):
        return

    @functools.wraps(original)
    def create_backend(self: Any, device: torch.device) -> Any:
        if device.type != device_type:
            return original(self, device)
        from torch._inductor.codegen.common import get_scheduling_for_device
        from torch._inductor.virtualized import V

        V.graph.add_device_info(device)
        scheduling = get_scheduling_for_device(device.type)
        assert scheduling is not None
        return scheduling(self)

    create_backend.vkinductor = True  # type: ignore[attr-defined]
    scheduler.Scheduler.create_backend = create_backend  # type: ignore[method-assign]


def compare_any_strides() -> None:
    """Let torch 2.13 order strides that are sums of sizes: sympy fails there at the remainder of one by another."""
    from torch._inductor import ir
    from torch.utils._sympy.value_ranges import ValueRangeError

    original = getattr(ir.Layout, "_stride_expr_ge_or_false", None)
    if original is None or getattr(original, "vkinductor", False):
        return

    @functools.wraps(original)
    def compare(left: Any, right: Any) -> bool:
        try:
            return original(left, right)
        except ValueRangeError:
            # A stride of a contiguous tensor is the next one times a size.
            return sympy.fraction(sympy.cancel(left / right))[1] == 1

    compare.vkinductor = True  # type: ignore[attr-defined]
    ir.Layout._stride_expr_ge_or_false = staticmethod(compare)  # type: ignore[method-assign]


def reindex_what_is_shared(device_type: str) -> None:
    """Let torch 2.13 give a pointwise node the loops of a reduction only when both use a buffer.

    It traces the node's body anew before it looks for an access that has become the same, for pairs without a buffer in
    common too: their number grows with the square of a model's layers (267 of 278 traces in a llama of 10 layers).
    """
    from torch._inductor import scheduler

    original = getattr(scheduler.Scheduler, "_try_reindex_pointwise_for_reduction", None)
    if original is None or getattr(original, "vkinductor", False):
        return

    @functools.wraps(original)
    def reindex(self: Any, node1: Any, node2: Any) -> bool:
        device = node1.get_device()
        ours = device is not None and device.type == device_type
        if ours and not node1.read_writes.buffer_names() & node2.read_writes.buffer_names():
            return False
        return original(self, node1, node2)

    reindex.vkinductor = True  # type: ignore[attr-defined]
    scheduler.Scheduler._try_reindex_pointwise_for_reduction = reindex  # type: ignore[method-assign]


def spell_lengths_alike(device_type: str) -> None:
    """Let torch 2.11 see that a template and its epilogue go over the same elements where a size is a sum.

    Accesses are compared as they are spelt, once loops are merged (``settings.FIXED``): 3 * s * (s + 2) in what a
    convolution writes, 3 * s**2 + 6 * s in what reads it.
    """
    from torch._inductor import config, dependencies
    from torch._inductor.virtualized import V

    recorder = dependencies._RecordLoadStoreInner
    original = recorder._normalize
    if hasattr(config, "loop_reindexing_after_fusion") or getattr(original, "vkinductor", False):
        return

    def normalize(index: Any, var_ranges: Any) -> Any:
        index, names, sizes = original(index, var_ranges)
        if device_type in V.graph.device_types:
            sizes = tuple(map(V.graph.sizevars.simplify, sizes))
        return index, names, sizes

    normalize.vkinductor = True  # type: ignore[attr-defined]
    recorder._normalize = staticmethod(normalize)  # type: ignore[method-assign]


def serve_flex_attention(device_type: str) -> None:
    """Let torch's FlexAttention take tensors of ``device_type``, also under autocast.

    The devices that it takes are a constant of the function that checks them, which Dynamo has to be able to trace: so
    the function stays and the constant gets one more.
    """
    from torch._higher_order_ops.flex_attention import flex_attention as operator
    from torch.nn.attention import flex_attention

    check = flex_attention._validate_device
    devices = [c for c in check.__code__.co_consts if isinstance(c, (frozenset, tuple)) and {"cuda", "cpu"} <= set(c)]
    if any(device_type in c for c in devices):
        return
    constants = (type(c)((*c, device_type)) if c in devices else c for c in check.__code__.co_consts)
    check.__code__ = check.__code__.replace(co_consts=tuple(constants))

    autocast: Any = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]

    @operator.py_impl(autocast)
    def under_autocast(query: Any, key: Any, value: Any, *rest: Any) -> Any:
        dtype = torch.get_autocast_dtype(device_type)
        operands = [x.to(dtype) if x.is_floating_point() else x for x in (query, key, value)]
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(autocast)):
            return operator(*operands, *rest)


def stable_topological_sort(graph: torch.fx.Graph) -> None:
    """Put the nodes of ``graph`` after what they read, in their order otherwise."""
    from torch._inductor.pattern_matcher import stable_topological_sort

    stable_topological_sort(graph)
