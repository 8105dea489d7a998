"""torch's catalogue: names, dtypes, and which samples are taken."""

from __future__ import annotations

import pytest
import torch

from vkinductor.conformance import samples
from vkinductor.conformance.entry import DTYPES


def test_every_entry_has_a_name_of_its_own():
    names = samples.names()
    assert len(names) == len(set(names)) > 600
    assert {"add", "linalg.norm", "nn.functional.conv2d", "linalg.norm.subgradients_at_zero"} <= set(names)


def test_dtypes_are_those_of_the_cpu():
    assert list(samples.entry("add").dtypes) == list(DTYPES)
    assert list(samples.entry("bitwise_and").dtypes) == [torch.int64, torch.int32, torch.uint8, torch.bool]


def test_backward_needs_a_derivative():
    assert torch.float32 in samples.entry("sin").gradients
    assert torch.int64 not in samples.entry("sin").gradients
    assert torch.float32 not in samples.entry("argmax").gradients


def test_a_few_samples_hold_the_odd_ones():
    everything = list(samples.samples("sum", torch.float32))
    few = list(samples.samples("sum", torch.float32, 3))
    assert len(few) == 4 < len(everything)
    assert any(t.dim() == 0 for s in few for t in samples.tensors(s))
    assert any(not t.is_contiguous() for t in samples.tensors(few[-1]))


def test_samples_are_the_same_each_time():
    first, second = (list(samples.samples("mul", torch.float32, 4)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        for x, y in zip(samples.tensors(a), samples.tensors(b), strict=True):
            assert torch.equal(x, y)
            assert x.stride() == y.stride()


def test_the_last_sample_has_the_values_of_another():
    made = list(samples.samples("matmul", torch.float32, 6))
    strided = samples.tensors(made[-1])
    assert any(
        all(torch.equal(x, y) for x, y in zip(samples.tensors(sample), strided, strict=True))
        for sample in made[:-1]
        if [t.shape for t in samples.tensors(sample)] == [t.shape for t in strided]
    )


@pytest.mark.parametrize(("name", "expected"), [("sin", True), ("randn", False), ("empty_like", False)])
def test_what_can_be_compared(name, expected):
    assert samples.entry(name).reproducible is expected
