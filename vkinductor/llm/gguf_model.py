"""A decoder out of a GGUF file, its weights packed on the device as they are in the file.

Owns the way of each tensor from the mapped file to its module: checked against the model's sizes, its rows put into the
order that the decoder's rotation has, and moved on its own, so that no second copy of the model exists on the way.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from vkinductor.llm.architectures import DecoderConfig, check_dtype, configure, default_dtype
from vkinductor.llm.decoder import Decoder, GenerationConfig
from vkinductor.llm.errors import ModelFormatError, ModelNotFoundError, UnknownOptionError
from vkinductor.llm.gguf_file import GGUFFile
from vkinductor.llm.quantized import Embedding, QuantizedEmbedding, QuantizedLinear

# The option of the backend.
INT8_ACTIVATIONS = "int8_activations"

# Keys of the tokens that end a text.
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def load_gguf(
    path: str | os.PathLike[str],
    device: str | torch.device = "vulkan",
    dtype: torch.dtype | None = None,
    *,
    int8_activations: bool = False,
) -> Decoder:
    """The language model in the GGUF file `path` on `device`, in evaluation mode.

    Weights in block formats stay as they are in the file (uint8 rows); those that are floats, and all activations, get
    `dtype` (None: float16, or bfloat16 where hidden states outgrow that). On the CPU packed weights are the mapped file
    itself. `int8_activations`: what the driver compiles of it has rows in 8 bits where few of them meet packed weights
    (docs/int8-activations.md). Raises ModelNotFoundError, ModelFormatError for a file that is damaged or whose tensors
    do not fit together, UnsupportedModelError for an architecture or a format that is not in the tables
    (architectures.py, device/quantized.py), UnknownOptionError for a dtype that is none of floats or too narrow.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ModelNotFoundError(f"no such model: {path} (expected a GGUF file)")
    if dtype is not None and not dtype.is_floating_point:
        raise UnknownOptionError(f"activations in {dtype} are not supported: choose a floating dtype")
    file = GGUFFile(path)
    if dtype is not None:
        check_dtype(file.architecture, dtype)
    model = decoder(file, torch.device(device), dtype or default_dtype(file.architecture))
    model.compile_options = {INT8_ACTIVATIONS: True} if int8_activations else {}
    return model


def decoder(file: GGUFFile, device: torch.device, dtype: torch.dtype) -> Decoder:
    """The model in `file`; see `load_gguf`."""
    config = configure(file)
    ends = (file.value(f"tokenizer.ggml.{key}", int) for key in _END_KEYS)
    generation = GenerationConfig(
        bos_token_id=file.value("tokenizer.ggml.bos_token_id", int),
        pad_token_id=file.value("tokenizer.ggml.padding_token_id", int),
        eos_token_id=list(dict.fromkeys(end for end in ends if end is not None)),
    )
    with torch.no_grad():
        return Decoder(config, FileWeights(file, config, device, dtype), generation)


class FileWeights:
    """The tensors of a file as parts of a decoder (decoder.Weights), each on `device`.

    Raises ModelFormatError for a tensor that is missing or of another shape than asked for.
    """

    def __init__(self, file: GGUFFile, config: DecoderConfig, device: torch.device, dtype: torch.dtype):
        self.file, self.device, self.dtype = file, device, dtype
        self.interleaved = config.architecture.interleaved
        self.turning = max((rope.width for rope in config.ropes.values()), default=0)

    def __contains__(self, name: str) -> bool:
        return name in self.file

    def linear(self, name: str, rows: int, columns: int, heads: int = 0) -> nn.Module:
        """A linear layer (columns to rows), packed if the file has it so."""
        self._require(f"{name}.weight", (rows, columns))
        bias = None
        order = halves(heads, rows // heads, self.turning) if heads and self.interleaved else None
        if f"{name}.bias" in self.file:
            bias = self.vector(f"{name}.bias", rows, order)
        weight, format = self.file.tensor(f"{name}.weight")
        if order is not None:
            weight = weight[order]
        if format is not None:
            return QuantizedLinear(weight.to(self.device), format, bias)
        layer = nn.Linear(columns, rows, bias is not None, device="meta")
        layer.weight = nn.Parameter(self._floats(weight), requires_grad=False)
        if bias is not None:
            layer.bias = nn.Parameter(bias, requires_grad=False)
        return layer

    def embedding(self, name: str, rows: int, columns: int) -> Embedding | QuantizedEmbedding:
        """An embedding, packed if the file has it so."""
        self._require(f"{name}.weight", (rows, columns))
        weight, format = self.file.tensor(f"{name}.weight")
        if format is not None:
            return QuantizedEmbedding(weight.to(self.device), format)
        return Embedding(self._floats(weight))

    def vector(self, name: str, length: int, order: torch.Tensor | None = None) -> torch.Tensor:
        """A vector of floats, its elements in `order`."""
        values = self.exact(name, length)
        return self._floats(values if order is None else values[order])

    def exact(self, name: str, length: int) -> torch.Tensor:
        """A vector in float32 on the CPU."""
        self._require(name, (length,))
        values, format = self.file.tensor(name)
        if format is not None:
            raise ModelFormatError(f"{self.file.path}: the vector {name!r} is in blocks")
        return values.float()

    def _floats(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self.dtype).to(self.device)

    def _require(self, name: str, shape: tuple[int, ...]) -> None:
        found = tuple(reversed(self.file.entry(name).shape))
        if found != shape:
            raise ModelFormatError(f"{self.file.path}: tensor {name!r} has shape {found}, the model needs {shape}")


def halves(heads: int, width: int, turning: int) -> torch.Tensor:
    """Row numbers, int64 (heads * width,), that undo the order of GGUF's llamas.

    Their rows of q and k are ordered so that the rotation turns neighbours 2 i and 2 i + 1 of the first `turning`
    elements of a head; taken in this order it turns i and i + turning / 2, with the same result. What does not turn
    stays.
    """
    within = torch.arange(width)
    within[:turning] = within[:turning].view(-1, 2).T.reshape(-1)
    return (torch.arange(heads)[:, None] * width + within).reshape(-1)
