"""The reductions: what each accumulates, its identity, and how two partial results combine.

A reduction is a tuple of accumulators. ``update`` folds one element into them, ``combine`` folds in the
accumulators of another lane. Statements are GLSL over the accumulator names; the layout (lanes, loops, shared
memory) is the kernel's and fold.glsl.jinja's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .types import glsl_type, is_float, literal

Statements = list[str]

# More float32 additions one after the other than this, and the sum is compensated: their rounding errors add up to
# units.
SERIAL_SUM = 8


@dataclass(frozen=True)
class Reduction:
    """One reduction over one dtype.

    ``dtypes``: register dtypes of the accumulators; ``identities``: their GLSL start values;
    ``update(acc, values)`` and ``combine(acc, other)`` give statements that fold into ``acc``. The last
    ``private`` accumulators stay in their lane: ``finish`` folds them into the others before lanes combine. A lane
    takes the elements of a step together: ``begin_step`` and ``end_step`` are statements around them.
    """

    dtypes: tuple[torch.dtype, ...]
    identities: tuple[str, ...]
    update: Callable[[Sequence[str], Sequence[str]], Statements]
    combine: Callable[[Sequence[str], Sequence[str]], Statements]
    private: int = 0
    finish: Callable[[Sequence[str]], Statements] | None = None
    begin_step: Callable[[Sequence[str]], Statements] | None = None
    end_step: Callable[[Sequence[str]], Statements] | None = None


def _simple(dtype: torch.dtype, identity: str, expression: str) -> Reduction:
    def fold(acc: Sequence[str], other: Sequence[str]) -> Statements:
        return [f"{acc[0]} = {expression.format(a=acc[0], b=other[0])};"]

    return Reduction((dtype,), (identity,), fold, fold)


def _compensated_sum() -> Reduction:
    """A float32 sum that also adds up what its additions lose (two-sum: Knuth, TAOCP 2, 4.2.2, theorem B).

    A lane that adds hundreds of elements one after the other would lose several bits. ``precise`` keeps drivers
    from simplifying (a + b) - a.
    """

    def update(acc: Sequence[str], values: Sequence[str]) -> Statements:
        total, lost = acc
        return [
            "{",
            f"    precise float added = {values[0]};",
            f"    precise float next = {total} + added;",
            f"    precise float part = next - {total};",
            f"    precise float error = ({total} - (next - part)) + (added - part);",
            f"    {lost} += error;",
            f"    {total} = next;",
            "}",
        ]

    def combine(acc: Sequence[str], other: Sequence[str]) -> Statements:
        return [f"{acc[0]} = {acc[0]} + {other[0]};"]

    def finish(acc: Sequence[str]) -> Statements:
        # Past infinity the error terms are inf - inf; the sum itself is right.
        return [f"{acc[0]} += vk_isfinite({acc[1]}) ? {acc[1]} : 0.0;"]

    return Reduction((torch.float32,) * 2, ("0.0", "0.0"), update, combine, private=1, finish=finish)


def _stepwise_sum(steps: int) -> Reduction:
    """A float32 sum of the sums of ``steps`` steps: compensated where these are many."""
    rule = _compensated_sum() if steps > SERIAL_SUM else _simple(torch.float32, "0.0", "{a} + {b}")

    def part(acc: Sequence[str]) -> str:
        return f"{acc[0]}_step"

    return dataclasses.replace(
        rule,
        update=lambda acc, values: [f"{part(acc)} = {part(acc)} + {values[0]};"],
        begin_step=lambda acc: [f"float {part(acc)} = 0.0;"],
        end_step=lambda acc: rule.update(acc, [part(acc)]),
    )


def _extreme_identity(dtype: torch.dtype, largest: bool) -> str:
    """The value every other beats: the identity of max (``largest`` False) or min (True)."""
    if dtype == torch.bool:
        return "true" if largest else "false"
    if is_float(dtype):
        return literal(float("inf") if largest else float("-inf"), dtype)
    info = torch.iinfo(dtype)
    return literal(info.max if largest else info.min, dtype)


def _extremum(dtype: torch.dtype, name: str) -> Reduction:
    identity = _extreme_identity(dtype, name == "min")
    if dtype == torch.bool:
        return _simple(dtype, identity, "({a} || {b})" if name == "max" else "({a} && {b})")
    if is_float(dtype):
        function = f"vk_{name}_f64" if dtype == torch.float64 else f"vk_{name}"
        return _simple(dtype, identity, f"{function}({{a}}, {{b}})")
    return _simple(dtype, identity, f"{name}({{a}}, {{b}})")


def greatest_number(dtype: torch.dtype) -> Reduction:
    """The maximum where there is no NaN; any of the values where there is."""
    return _simple(dtype, _extreme_identity(dtype, largest=False), "max({a}, {b})")


def _arg_extremum(dtype: torch.dtype, name: str, index_dtype: torch.dtype) -> Reduction:
    """Value and index; NaN wins, then the smaller index among equals, as in torch."""
    better = ">" if name == "argmax" else "<"
    isnan = "vk_isnan_f64" if dtype == torch.float64 else "vk_isnan"

    def fold(acc: Sequence[str], other: Sequence[str]) -> Statements:
        value, index = acc
        other_value, other_index = other
        if dtype == torch.bool:
            wins = f"(int({other_value}) {better} int({value}))"
        else:
            wins = f"({other_value} {better} {value})"
        tie = f"({other_value} == {value})"
        if is_float(dtype):
            nan, other_nan = f"{isnan}({value})", f"{isnan}({other_value})"
            wins = f"({wins} && !{nan} || {other_nan} && !{nan})"
            tie = f"({tie} || {nan} && {other_nan})"
        return [
            f"if ({wins} || {tie} && {other_index} < {index}) {{",
            f"    {value} = {other_value};",
            f"    {index} = {other_index};",
            "}",
        ]

    identities = (
        _extreme_identity(dtype, name == "argmin"),
        literal(torch.iinfo(index_dtype).max, index_dtype),
    )
    return Reduction((dtype, index_dtype), identities, fold, fold)


def _welford(dtype: torch.dtype, merging: bool) -> Reduction:
    """Mean, sum of squared deviations, weight (Welford; combination after Chan, Golub and LeVeque, 1979)."""
    register = glsl_type(dtype).register
    zero, one = literal(0, dtype), literal(1, dtype)

    def combine(acc: Sequence[str], other: Sequence[str]) -> Statements:
        mean, m2, weight = acc
        other_mean, other_m2, other_weight = other
        return [
            "{",
            f"    {register} delta = {other_mean} - {mean};",
            f"    {register} total = {weight} + {other_weight};",
            f"    {register} share = total == {zero} ? {zero} : {other_weight} / total;",
            f"    {mean} += delta * share;",
            f"    {m2} += {other_m2} + delta * delta * {weight} * share;",
            f"    {weight} = total;",
            "}",
        ]

    def merge(acc: Sequence[str], values: Sequence[str]) -> Statements:
        return combine(acc[:3], values)

    def update(acc: Sequence[str], values: Sequence[str]) -> Statements:
        mean, m2, weight, lost = acc
        # The mean moves by ever smaller steps: what each addition loses is carried over to the next.
        return [
            "{",
            f"    precise {register} delta = {values[0]} - {mean};",
            f"    {weight} += {one};",
            f"    precise {register} step = delta / {weight} + {lost};",
            f"    precise {register} next = {mean} + step;",
            f"    {lost} = step - (next - {mean});",
            f"    {mean} = next;",
            f"    {m2} += delta * ({values[0]} - {mean});",
            "}",
        ]

    if merging:
        return Reduction((dtype,) * 3, (zero,) * 3, merge, combine)
    return Reduction((dtype,) * 4, (zero,) * 4, update, combine, private=1)


def _online_softmax(dtype: torch.dtype) -> Reduction:
    """Running maximum and sum of exp(x - maximum) in one pass (Milakov and Gimelshein, 2018)."""
    register = glsl_type(dtype).register
    exp = "vk_exp_f64" if dtype == torch.float64 else "vk_exp"
    maximum = "vk_max_f64" if dtype == torch.float64 else "vk_max"
    lowest = literal(float("-inf"), dtype)

    def combine(acc: Sequence[str], other: Sequence[str]) -> Statements:
        top, total = acc
        other_top, other_total = other
        return [
            "{",
            f"    {register} highest = {maximum}({top}, {other_top});",
            # -inf - -inf is NaN: a row of -inf so far keeps its sum.
            f"    {total} = {total} * ({top} == highest ? {literal(1, dtype)} : {exp}({top} - highest))",
            f"        + {other_total} * ({other_top} == highest ? {literal(1, dtype)} : {exp}({other_top} - highest));",
            f"    {top} = highest;",
            "}",
        ]

    def update(acc: Sequence[str], values: Sequence[str]) -> Statements:
        if len(values) == 2:
            return combine(acc, values)
        return combine(acc, (values[0], literal(1, dtype)))

    return Reduction((dtype, dtype), (lowest, literal(0, dtype)), update, combine)


ARG_REDUCTIONS = {
    # Inductor's kind -> (the reduction, which of its accumulators are the result)
    "argmax": ("argmax", (1,)),
    "argmin": ("argmin", (1,)),
    "argmax_value": ("argmax", (0,)),
    "argmin_value": ("argmin", (0,)),
    "argmax_with_value": ("argmax", (0, 1)),
    "argmin_with_value": ("argmin", (0, 1)),
}


def reduction(
    kind: str, dtype: torch.dtype, source: torch.dtype, index_dtype: torch.dtype, serial: int, step: int = 1
) -> Reduction:
    """The reduction Inductor calls ``kind``, accumulating in register dtype ``dtype`` over ``source`` values.

    ``serial`` is how many elements a lane folds one after the other, ``step`` of them at a time; ``index_dtype`` is
    that of the indices an arg-reduction keeps. Raises NotImplementedError for a kind that has no row here.
    """
    if kind in ARG_REDUCTIONS:
        return _arg_extremum(source, ARG_REDUCTIONS[kind][0], index_dtype)
    match kind:
        case "sum" if serial > SERIAL_SUM and dtype == torch.float32:
            return _stepwise_sum(serial // step) if step > 1 else _compensated_sum()
        case "sum":
            return _simple(dtype, literal(0, dtype), "{a} + {b}")
        case "prod":
            return _simple(dtype, literal(1, dtype), "{a} * {b}")
        case "xor_sum":
            return _simple(dtype, literal(0, dtype), "{a} != {b}" if dtype == torch.bool else "{a} ^ {b}")
        case "any":
            return _simple(torch.bool, "false", "{a} || {b}")
        case "max" | "min":
            return _extremum(source, kind)
        case "welford_reduce" | "welford_combine":
            return _welford(source, merging=kind == "welford_combine")
        case "online_softmax_reduce":
            return _online_softmax(source)
    raise NotImplementedError(f"reduction {kind!r} has no Vulkan kernel")
