"""Eighteen model families, small and with random weights: whole graphs, right results, no fallback, few kernels."""

from __future__ import annotations

import pytest

from vkinductor.conformance.families import FAMILIES
from vkinductor.conformance.model_check import MODES, forward, training_step

FAMILY = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
TRAINED = pytest.mark.parametrize("family", [f for f in FAMILIES if f.trains], ids=lambda family: family.name)

# Kernels of ours for each that Inductor's GPU code generation makes of the same graph.
MOST_KERNELS = 1.1


def groups(report):
    """What the kernels of both sides are, for the message of a failure."""
    return "\n\n".join("\n".join(lines) for lines in report.kernels.groups)


@FAMILY
def test_forward(family):
    report = forward(family, MODES[0])
    assert not report.compared.wrong, "\n".join(report.compared.wrong)
    assert report.device == "cpu"
    assert report.fallbacks == {}
    assert report.kernels.inductor > 0
    assert report.kernels.ratio <= MOST_KERNELS, groups(report)


@FAMILY
def test_forward_of_device_tensors(family):
    report = forward(family, MODES[1])
    assert not report.compared.wrong, "\n".join(report.compared.wrong)
    assert report.device == "vulkan"
    assert report.fallbacks == {}


@TRAINED
def test_training_step(family):
    report = training_step(family)
    assert not report.compared.wrong, "\n".join(report.compared.wrong)
    assert report.fallbacks == {}
