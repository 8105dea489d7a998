"""Eighteen model families, small and with random weights: whole graphs, right results, no fallback, few kernels.

Compiling is what takes the time, so each family is compiled once, from CPU tensors and from device tensors by turns.
What becomes of CPU tensors does not depend on the model (tests/backend); tools/model_table.py runs all in both modes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from vkinductor.conformance.families import FAMILIES
from vkinductor.conformance.model_check import MODES, forward, training_step

FAMILY = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
TRAINED = pytest.mark.parametrize("family", [f for f in FAMILIES if f.trains], ids=lambda family: family.name)

# Of models of two stacks, and of Mamba's long layers, one layer each is compiled: what follows it is a norm as well.
ONE_LAYER = {"T5", "Whisper", "CLIP", "ViT-MAE", "Mamba"}
LAYERS = {"num_layers", "num_hidden_layers", "encoder_layers", "decoder_layers", "decoder_num_hidden_layers"}

# Kernels of ours for each that Inductor's GPU code generation makes of the same graph.
MOST_KERNELS = 1.1


def shallow(settings):
    """``settings`` of a configuration and those inside of it, with one layer a stack."""
    found = {name: shallow(value) if isinstance(value, dict) else value for name, value in settings.items()}
    return {name: 1 if name in LAYERS else value for name, value in found.items()}


def groups(report):
    """What the kernels of both sides are, for the message of a failure."""
    return "\n\n".join("\n".join(lines) for lines in report.kernels.groups)


@FAMILY
def test_forward(family):
    mode = MODES[FAMILIES.index(family) % 2]
    if family.name in ONE_LAYER:
        family = replace(family, settings=shallow(family.settings))
    report = forward(family, mode)
    assert not report.compared.wrong, "\n".join(report.compared.wrong)
    assert report.device == ("cpu" if mode == "cpu tensors" else "vulkan")
    assert report.fallbacks == {}
    assert report.kernels.inductor > 0
    assert report.kernels.ratio <= MOST_KERNELS, groups(report)


@TRAINED
def test_training_step(family):
    report = training_step(family)
    assert not report.compared.wrong, "\n".join(report.compared.wrong)
    assert report.fallbacks == {}
