"""Modes and options: what is accepted, and what is refused with which error."""

from __future__ import annotations

import pytest
import torch

from vkinductor.backend import MODES, settings, valid_options


def f(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


@pytest.mark.parametrize("mode", [None, *MODES])
def test_modes_are_accepted(mode: str | None) -> None:
    x = torch.randn(3)
    assert torch.equal(torch.compile(f, backend="vulkan", mode=mode)(x), f(x))


def test_unknown_mode() -> None:
    x = torch.randn(3)
    with pytest.raises(ValueError, match=r"unknown mode 'fast' .*max-autotune-no-cudagraphs") as caught:
        torch.compile(f, backend="vulkan", mode="fast")(x)
    assert type(caught.value).__name__ == "ValueError"
    assert torch.equal(torch.compile(f, backend="vulkan")(x), f(x))


def test_unknown_option_names_the_nearest_and_our_own() -> None:
    with pytest.raises(ValueError, match=r"max_fusion_sise") as caught:
        torch.compile(f, backend="vulkan", options={"max_fusion_sise": 3})(torch.randn(3))
    assert "Did you mean max_fusion_size" in str(caught.value)
    assert "chained, check, check_bounds, fallback" in str(caught.value)
    assert "epilogue_fusion" not in str(caught.value)


def test_wrong_type_of_an_option() -> None:
    with pytest.raises(ValueError, match="takes int"):
        torch.compile(f, backend="vulkan", options={"max_fusion_size": "many"})(torch.randn(3))


def test_options_are_inductors() -> None:
    x = torch.randn(3)
    assert torch.equal(torch.compile(f, backend="vulkan", options={"max-fusion-size": 8})(x), f(x))
    assert settings(None, {"max-fusion-size": 8})["max_fusion_size"] == 8
    assert not any(name.startswith("_") or name.isupper() for name in valid_options())


def test_int8_activations_are_of_the_cache_key() -> None:
    from torch._inductor import config

    patches = settings(None, {"int8-activations": True})
    keys = []
    for patch in ({}, patches):
        with config.patch(patch):
            keys.append(config.save_config_portable(ignore_private_configs=False)["vulkan.int8_activations"])
    assert keys == [False, True]
    with pytest.raises(ValueError, match=r"'int8_activations' .* takes bool"):
        settings(None, {"int8_activations": 8})


def test_settings_that_the_backend_fixes_are_refused() -> None:
    with pytest.raises(ValueError, match="cpp_wrapper"):
        settings(None, {"cpp_wrapper": True})
