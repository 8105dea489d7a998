"""What a user makes of a score: FlexAttention's score and mask functions, as statements inside an attention kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.codegen.common import CSEVariable, IndentedBuffer
from torch._inductor.exc import SubgraphLoweringException
from torch._inductor.ir import FixedLayout, InputBuffer, TensorBox
from torch._inductor.subgraph_lowering import PointwiseSubgraphLowering
from torch._inductor.virtualized import OpsValue, V, WrapperHandler
from torch.utils._sympy.value_ranges import ValueRanges

from vkinductor.codegen.template_kernel import VulkanTemplateKernel
from vkinductor.codegen.vectorize import scalar
from vkinductor.runtime.errors import UnsupportedError

# What such functions are given, in order: the score, then where it is.
SCORE = "flex_score"
PLACES = ("flex_batch", "flex_head", "flex_query", "flex_key")
# The gradient of the function's result, which the function's own gradient gets beside them.
GRADIENT = "flex_gradient"
_ANY_PLACE = ValueRanges(0, (1 << 31) - 1)


@dataclass(frozen=True)
class Modification:
    """A function's results (zero-dimensional, None where there is none) as expressions of its arguments' names."""

    results: tuple[Any, ...]

    @classmethod
    def of(
        cls,
        graph: torch.fx.GraphModule,
        names: Sequence[str],
        captured: Sequence[Any],
        dtype: torch.dtype,
        device: Any,
        used: int | None = None,
    ) -> Modification:
        """The traced function ``graph`` of arguments ``names`` and of the buffers that it reads; ``used``: how many of
        its results count.

        Raises:
            UnsupportedError: it is not made of pointwise operators and loads alone.
        """
        given = [_placeholder(name, torch.int32 if name in PLACES else dtype, device) for name in names]
        lowered = PointwiseSubgraphLowering(graph, root_graph_lowering=V.graph)
        try:
            with V.set_graph_handler(lowered):  # type: ignore[arg-type]
                lowered.run(*given, *captured)
        except SubgraphLoweringException as error:
            raise UnsupportedError(
                f"FlexAttention: a score_mod or mask_mod may only have pointwise operators and indexing: {error}"
            ) from error
        made: Any = lowered.graph_outputs
        results = tuple(made) if isinstance(made, (tuple, list)) else (made,)
        return cls(results[:used])

    def write(self, kernel: VulkanTemplateKernel, values: dict[str, str]) -> tuple[list[str], list[str]]:
        """GLSL statements and the names of the results that there are; the arguments have the names ``values``."""
        lines = IndentedBuffer()
        known = {
            name: CSEVariable(text, _ANY_PLACE, torch.int32, ())
            if name in PLACES
            else CSEVariable(text, ValueRanges.unknown(), torch.float32, ())
            for name, text in values.items()
        }
        with kernel, kernel.swap_buffers(lines), V.set_ops_handler(_Given(known)):
            made = [result.make_loader()(()) for result in self.results if result is not None]
        names = [str(x.value if isinstance(x, OpsValue) else x) for x in made]
        return scalar(lines.getvalue().splitlines(), list(kernel.accesses.values())), names


class _Given(WrapperHandler):
    """Operators of a kernel, except that loads of arguments are values which the kernel has."""

    def __init__(self, known: dict[str, CSEVariable]) -> None:
        super().__init__(V.get_ops_handler())
        self._known = known

    def load(self, name: str, index: Any) -> Any:
        found = self._known.get(name)
        return self._inner.load(name, index) if found is None else found


def _placeholder(name: str, dtype: torch.dtype, device: Any) -> TensorBox:
    return TensorBox.create(InputBuffer(name=name, layout=FixedLayout(device, dtype, [], [])))
