"""Operators of weights in block formats: shapes, what is refused, and what they are without a compiler."""

from __future__ import annotations

import pytest
import torch

from vkinductor.device.quantized import FORMATS, dequantize, format_of, linear_reference, quantized_linear

gguf = pytest.importorskip("gguf")


def test_the_table_is_the_packages() -> None:
    for number, entry in FORMATS.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, gguf.GGML_QUANT_SIZES[kind]) == (entry.name, (entry.elements, entry.nbytes))
        assert entry.columns(entry.row_bytes(512)) == 512
        assert entry.nbytes % entry.alignment == 0


def test_a_number_that_is_no_format_is_told_what_there_is() -> None:
    with pytest.raises(ValueError, match="Q4_K"):
        format_of(99)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="uint8"):
        dequantize(torch.zeros(2, 18), 2, torch.float32)
    with pytest.raises(ValueError, match="whole blocks"):
        dequantize(torch.zeros(2, 19, dtype=torch.uint8, device="meta"), 2, torch.float32)
    with pytest.raises(RuntimeError, match="33 columns"):
        quantized_linear(torch.zeros(2, 33, device="meta"), torch.zeros(4, 18, dtype=torch.uint8, device="meta"), 2)


def test_without_a_compiler_the_host_runs_them() -> None:
    w = torch.randint(0, 100, (4, 36), dtype=torch.uint8)
    x = torch.randn(2, 3, 64)
    y = quantized_linear(x.to("vulkan"), w.to("vulkan"), 2)
    assert y.device.type == "vulkan"
    torch.testing.assert_close(y.cpu(), linear_reference(x, w, 2))
    odd = torch.cat([torch.zeros(1, dtype=torch.uint8), w.reshape(-1)]).to("vulkan")[1:].view(4, 36)
    assert torch.equal(dequantize(odd, 2, torch.half).cpu(), dequantize(w, 2, torch.half))
