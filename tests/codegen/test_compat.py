"""What is changed of Inductor's private parts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import sympy
import torch
from compiled import check
from torch._inductor import ir, utils
from torch._inductor.codegen import common
from torch._inductor.dtype_propagation import DtypePropagationOpsHandler
from torch._inductor.virtualized import V

from vkinductor.codegen import compat
from vkinductor.runtime.errors import UnsupportedError


def test_what_a_torch_lacks_is_named(monkeypatch):
    compat.check()
    monkeypatch.setattr(compat, "_NEEDED", (("torch._inductor.ir", "Scan.creates"), ("torch._inductors", "ir")))
    monkeypatch.setattr(compat, "_NEEDED_OF_INSTANCES", (("torch._inductor.codegen.common", "CSE", "varnames"),))
    lacks = r"lacks torch._inductor.ir.Scan.creates, torch._inductors.ir, torch._inductor.codegen.common.CSE.varnames\."
    with pytest.raises(UnsupportedError, match=lacks):
        compat.check()


def test_dtype_rules_are_made_once_and_again_after_a_new_one(monkeypatch):
    check(lambda x: x + 1, torch.ones(4))
    if isinstance(common.DtypePropagationOpsHandler, type):
        pytest.skip("this torch has other parts here")
    made = []
    fill = DtypePropagationOpsHandler.__init__

    def counted(self):
        made.append(self)
        fill(self)

    monkeypatch.setattr(DtypePropagationOpsHandler, "__init__", counted)
    torch._dynamo.reset()
    check(lambda x: (x * 2).sin() + x.exp(), torch.ones(4))
    assert not made
    rule = next(iter(utils.op_dtype_propagation_rules.values()))
    monkeypatch.setitem(utils.op_dtype_propagation_rules, "an_operator_of_another_backend", rule)
    handlers = [common.DtypePropagationOpsHandler() for _ in range(3)]
    assert len(made) == 1
    assert all(handler is made[0] and handler.an_operator_of_another_backend for handler in handlers)


def test_sizes_and_strides_have_names_where_no_operator_asks_for_them():
    """In programs by torch 2.14, which says of each symbol which input has it."""
    n, m = sympy.symbols("s0 s1", integer=True, positive=True)
    graph = SimpleNamespace(symbolic_input_sources={m: ("gone", "size", 0)})
    with V.set_graph_handler(graph):
        layout = ir.FixedLayout(torch.device("cpu"), torch.float32, [n, 3], [m, 1])
        x, y = (ir.TensorBox.create(ir.InputBuffer(name=name, layout=layout)) for name in "xy")
        compat.name_sizes({"x": x, "y": y, "s9": sympy.Symbol("s9")})
    assert graph.symbolic_input_sources == {n: ("x", "size", 0), m: ("x", "stride", 0)}
