"""One entry in one dtype: eager on the device, compiled with static and with symbolic shapes, and backward.

The reference is the CPU's eager result, in the same dtype and in double precision: a result is right when it is within
torch's own tolerances of the first, or each value is within them of the second or as near to it as the CPU's. Where
the CPU itself is not within them of the second, a value may also be off by what rounding the arguments changes, or by
what the CPU is at arguments rounded otherwise (conditioning.py).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

import vkinductor
from vkinductor.conformance import conditioning, groups, samples, ties
from vkinductor.conformance.entry import Sample
from vkinductor.runtime.errors import UnsupportedError

VARIANTS = ("eager", "static", "dynamic", "backward")
# From good to bad: an entry is as bad as its worst sample.
VERDICTS = ("gpu", "fallback", "skipped", "unsupported", "error", "wrong", "crash")


@dataclass
class Verdict:
    """Of one variant. detail: the first message; fallbacks: operator -> times it ran on the CPU."""

    verdict: str = "gpu"
    detail: str = ""
    samples: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)

    def worsen(self, verdict: str, detail: str) -> None:
        """Take on a verdict if it is worse than what was found so far."""
        if VERDICTS.index(verdict) > VERDICTS.index(self.verdict):
            self.verdict, self.detail = verdict, detail[:400]


def check(
    name: str, dtype: torch.dtype, variants: tuple[str, ...] = VARIANTS, limit: int | None = None
) -> dict[str, Verdict]:
    """Verdicts of an entry by variant. Raises nothing of the entry's."""
    found: dict[str, Verdict] = {}
    for variant in variants:
        if variant == "backward" and dtype not in samples.entry(name).gradients:
            continue
        torch._dynamo.reset()
        verdict = found[variant] = Verdict()
        function = _function(name, variant)
        try:
            made = list(samples.samples(name, dtype, limit))
        except Exception as error:  # the catalogue's own trouble, such as a package that is missing
            verdict.worsen("skipped", f"no samples: {type(error).__name__}: {error}")
            continue
        for sample in made:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _sample(name, function, sample, variant, verdict)
        if not verdict.samples:
            verdict.worsen("skipped", "no sample that the CPU can run")
    torch._dynamo.reset()
    return found


def _function(name: str, variant: str) -> Callable[..., Any]:
    operator = samples.entry(name).operator
    if variant == "eager":
        return operator

    def call(*args: Any, **kwargs: Any) -> Any:
        return operator(*args, **kwargs)

    return torch.compile(call, backend="vulkan", dynamic=variant == "dynamic")


def _sample(name: str, function: Callable[..., Any], sample: Sample, variant: str, verdict: Verdict) -> None:
    with_gradients = variant == "backward"
    try:
        expected = _run(samples.entry(name).operator, sample, with_gradients)
    except Exception:
        return  # not a sample that the CPU can do
    verdict.samples += 1
    before = dict(vkinductor.stats()["fallbacks"])
    try:
        got = _run(function, _on(sample, "vulkan"), with_gradients)
        got, expected = _on_host(got), _on_host(expected)
    except UnsupportedError as error:
        verdict.worsen("unsupported", str(error))
        return
    except Exception as error:
        cause = _cause(error)
        theirs = "" if variant == "eager" else _fails_elsewhere(name, sample, variant, cause)
        known = isinstance(cause, UnsupportedError) or theirs
        verdict.worsen("unsupported" if known else "error", f"{theirs}{_brief(cause)}")
        return
    after = vkinductor.stats()["fallbacks"]
    for operator, count in after.items():
        if count > before.get(operator, 0):
            verdict.fallbacks[operator] = verdict.fallbacks.get(operator, 0) + count - before.get(operator, 0)
    if verdict.fallbacks:
        verdict.worsen("fallback", ", ".join(sorted(verdict.fallbacks)))
    problem = _differs(name, got, expected, sample, with_gradients)
    if problem:
        verdict.worsen("wrong", problem)


def _fails_elsewhere(name: str, sample: Sample, variant: str, error: BaseException) -> str:
    """Says so when torch fails in the same way without this backend: Dynamo alone, or Inductor on the CPU."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return samples.entry(name).operator(*args, **kwargs)

    for backend, whose in (("eager", "Dynamo alone"), ("inductor", "Inductor on the CPU")):
        torch._dynamo.reset()
        function = torch.compile(call, backend=backend, dynamic=variant == "dynamic")
        try:
            _run(function, sample, variant == "backward")
        except Exception as other:
            if _kind(_cause(other)) == _kind(error):
                return f"{whose} fails too: "
    return ""


def _kind(error: BaseException) -> tuple[type, str]:
    """Type and message of an error without what differs between devices and runs: names of symbols, addresses."""
    text = re.sub(r"device='[\w:]+', |0x[0-9a-f]+|\bs\d+\b", "", _brief(error))
    return type(error), " ".join(text.split())[:200]


def _on_host(result: Any) -> Any:
    return tree_map(lambda v: v.cpu() if isinstance(v, torch.Tensor) else v, result)


def _on(sample: Sample, device: str) -> Sample:
    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return _copy(value, torch.device(device)).requires_grad_(value.requires_grad)
        if isinstance(value, torch.device):
            return torch.device(device)
        return value

    args, kwargs = tree_map(move, tuple(sample))
    if "device" in kwargs:
        kwargs["device"] = device
    return Sample(args, kwargs)


def _copy(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor with the strides of ``value``; what lies in gaps between its elements is zero."""
    value = value.detach()
    size, stride = value.size(), value.stride()
    if not value.numel():
        return torch.empty_strided(size, stride, dtype=value.dtype, device=device)
    extent = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    room = torch.zeros(extent, dtype=value.dtype, device=device)
    once = value[tuple(slice(None) if step else slice(1) for step in stride)]  # what is expanded is written once
    room.as_strided(once.size(), stride).copy_(once)
    return room.as_strided(size, stride)


def _run(function: Callable[..., Any], sample: Sample, with_gradients: bool, rounded: torch.dtype | None = None) -> Any:
    """The results, or the gradients of the arguments when asked for.

    rounded: what the gradients of the results are rounded to (default: the results' own dtypes).
    """
    copies = tree_map(lambda v: _leaf(v, with_gradients), tuple(sample))
    args, kwargs = copies
    torch.manual_seed(1)
    with torch.set_grad_enabled(with_gradients):
        result = function(*args, **kwargs)
    if not with_gradients:
        return result
    outputs = [t for t in samples.tensors(result) if t.requires_grad]
    inputs = [t for t in samples.tensors(copies) if t.requires_grad]
    if not outputs or not inputs:
        return result
    weights = [torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape).to(rounded or t.dtype) for t in outputs]
    weights = [w.to(t.dtype).to(t.device) for w, t in zip(weights, outputs, strict=True)]
    return torch.autograd.grad(outputs, inputs, weights, allow_unused=True)


def _leaf(value: Any, with_gradients: bool) -> Any:
    """A tensor that the call may change, with its strides."""
    if not isinstance(value, torch.Tensor):
        return value
    copy = _copy(value, value.device)
    return copy.requires_grad_(with_gradients and value.requires_grad and copy.is_floating_point())


def _differs(name: str, got: Any, expected: Any, sample: Sample, with_gradients: bool) -> str:
    """What is wrong with a result, empty when nothing is."""
    got_leaves, got_form = tree_flatten(got)
    leaves, form = tree_flatten(expected)
    if got_form != form:
        return f"a result of another form: {got_form} for {form}"
    exact = samples.entry(name).reproducible and not sample.kwargs.get("dropout_p")
    double: list[Any] | None = None
    for i, (g, e) in enumerate(zip(got_leaves, leaves, strict=True)):
        if not isinstance(e, torch.Tensor):
            if exact and g != e and not (g != g and e != e):
                return f"result {i}: {g!r} for {e!r}"
            continue
        if name in groups.STATISTICS and i and isinstance(g, torch.Tensor) and g.is_floating_point():
            g = g.to(e.dtype)
        if not isinstance(g, torch.Tensor) or g.dtype != e.dtype or g.shape != e.shape:
            return f"result {i}: {_form(g)} for {_form(e)}"
        if not exact:
            continue
        compared = ties.canonical(name, sample, i, g, e, with_gradients)
        if isinstance(compared, str):
            return f"result {i}: {compared}"
        g, e = compared
        limits = samples.entry(name).tolerances.get(e.dtype, (0.0, 0.0))
        problem = _far(g, e, limits)
        if problem and e.is_floating_point():
            if double is None:
                double = _in_double(name, sample, with_gradients)
            if double is not None and i < len(double) and isinstance(double[i], torch.Tensor):
                right = _as_near(g, e, double[i], limits)
                if not right and not _as_near(e, double[i].to(e.dtype), double[i], limits):
                    right = _as_near(g, e, double[i], limits, _allowance(name, sample, with_gradients, double)[i])
                problem = "" if right else problem
        if problem:
            return f"result {i}: {problem}"
    return ""


def _far(got: torch.Tensor, expected: torch.Tensor, limits: tuple[float, float] = (0.0, 0.0)) -> str:
    """What differs by more than torch's usual tolerances and by more than ``limits`` (absolute, relative)."""
    from torch.testing._comparison import get_tolerances

    relative, absolute = get_tolerances(got, expected, rtol=None, atol=None)
    try:
        torch.testing.assert_close(
            got, expected, equal_nan=True, atol=max(absolute, limits[0]), rtol=max(relative, limits[1])
        )
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


def _as_near(
    got: torch.Tensor,
    expected: torch.Tensor,
    exact: torch.Tensor,
    limits: tuple[float, float] = (0.0, 0.0),
    spread: torch.Tensor | float = 0.0,
) -> bool:
    """Whether each value is within the tolerances and ``spread`` of the exact one, or as near to it as the CPU's is."""
    from torch.testing._comparison import get_tolerances

    if exact.dtype != torch.float64 or exact.shape != got.shape:
        return not _far(got, exact.to(expected.dtype), limits)
    relative, absolute = get_tolerances(got, expected, rtol=None, atol=None)
    allowed = max(absolute, limits[0]) + max(relative, limits[1]) * exact.abs() + spread
    cpu = (expected.double() - exact).abs()
    near = (got.double() - exact).abs() <= torch.maximum(allowed, torch.where(cpu.isfinite(), cpu, 0))
    same = (got == exact.to(expected.dtype)) | (got.isnan() & exact.isnan()) | (got == expected)
    return bool((near & got.isfinite() | same).all())


def _in_double(name: str, sample: Sample, with_gradients: bool) -> list[Any] | None:
    return _results(name, conditioning.widened(sample), with_gradients, _floating(sample))


def _floating(sample: Sample) -> torch.dtype | None:
    return next((t.dtype for t in samples.tensors(tuple(sample)) if t.is_floating_point()), None)


def _results(name: str, sample: Sample, with_gradients: bool, rounded: torch.dtype | None) -> list[Any] | None:
    try:
        return tree_flatten(_run(samples.entry(name).operator, sample, with_gradients, rounded))[0]
    except Exception:
        return None


def _allowance(name: str, sample: Sample, with_gradients: bool, exact: list[Any]) -> list[Any]:
    dtype = _floating(sample)
    return conditioning.allowance(
        lambda wide: _results(name, wide, with_gradients, dtype),
        lambda narrow: _results(name, narrow, with_gradients, None),
        sample,
        exact,
    )


def _form(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


def _cause(error: BaseException) -> BaseException:
    """Our error behind torch's, if there is one."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, UnsupportedError):
            return at
        at = at.__cause__ or at.__context__
    return error


def _brief(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])}"
