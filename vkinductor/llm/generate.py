"""Text from a model and its tokenizer: one call, or a stream of pieces of text.

Owns prompts, stop tokens and text around the driver (generator.py), the names of devices, and the eager reference that
compiled runs are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from vkinductor.llm.errors import UnknownOptionError
from vkinductor.llm.generator import CACHE_GRANULE, WARM_UP_TOKENS, Generator, check_length, options_of
from vkinductor.llm.prompts import Message, encode
from vkinductor.llm.reports import CompileReport, Generation
from vkinductor.llm.sampling import SamplingOptions
from vkinductor.llm.step import cache_argument
from vkinductor.llm.stops import stop_tokens_of
from vkinductor.llm.text import pieces

__all__ = [
    "CACHE_GRANULE",
    "WARM_UP_TOKENS",
    "CompileReport",
    "Generation",
    "Generator",
    "check_length",
    "generate",
    "parse_device",
    "reference_tokens",
    "stream",
]

DEVICES = ("vulkan", "cpu")

# Caches grow by doubling from here, so that a growing conversation compiles for few lengths of cache.
LEAST_CONTEXT = 256

# Where a model keeps the generators that were made for it. They live as long as it does.
_GENERATORS = "_vkinductor_generators"

Prompt = str | Sequence[int] | Sequence[Message]


def generate(
    model: Any,
    tokenizer: Any,
    prompt: Prompt,
    options: SamplingOptions | None = None,
    *,
    backend: str | Callable[..., Any] | None = "vulkan",
    context: int | None = None,
    steps: int | None = None,
    stop_tokens: Sequence[int] | None = None,
    compile_options: Mapping[str, Any] | None = None,
    on_text: Callable[[str], None] | None = None,
) -> Generation:
    """Continue `prompt` and return the text, the tokens and what they cost.

    `model`: a causal language model on its device, of `transformers` or a `decoder.Decoder`. `prompt`: a text (one
    user turn where the tokenizer has a chat template), a conversation (dicts of ``role`` and ``content``), or token
    ids. `options` None: up to 256 greedy tokens. `backend`: of `torch.compile`; None runs eagerly. `context`: slots of
    the cache (None: what prompt and answer need, in powers of two, at most the model's). `steps`: how many run for
    each time that the host waits (None: as many as take a short while). `stop_tokens` end the text beside
    ``options.stop`` (None: those that the model's generation config names). `compile_options`: of the backend, as
    ``{"int8_activations": True}`` (None: the model's own). `on_text` gets the text in pieces, as they
    come. Graphs and cache are kept with the model: later calls compile nothing, and run of a prompt what is new.

    Raises PromptTooLongError and UnknownOptionError.
    """
    generator, tokens, options = _prepared(
        model, tokenizer, prompt, options, backend, context, stop_tokens, compile_options
    )
    text = []
    for piece in _pieces(generator, tokenizer, tokens, options, steps):
        text.append(piece)
        if on_text is not None:
            on_text(piece)
    assert generator.last is not None
    return replace(generator.last, text="".join(text))


def stream(
    model: Any,
    tokenizer: Any,
    prompt: Prompt,
    options: SamplingOptions | None = None,
    *,
    backend: str | Callable[..., Any] | None = "vulkan",
    context: int | None = None,
    steps: int | None = None,
    stop_tokens: Sequence[int] | None = None,
    compile_options: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """The pieces of text that `generate` with these arguments would join, as they come: whole characters."""
    generator, tokens, options = _prepared(
        model, tokenizer, prompt, options, backend, context, stop_tokens, compile_options
    )
    return _pieces(generator, tokenizer, tokens, options, steps)


def _prepared(
    model: Any,
    tokenizer: Any,
    prompt: Prompt,
    options: SamplingOptions | None,
    backend: Any,
    context: int | None,
    stop_tokens: Sequence[int] | None,
    compile_options: Mapping[str, Any] | None,
) -> tuple[Generator, list[int], SamplingOptions]:
    """The model's generator, the prompt's tokens, and the options with every token that ends the text."""
    options = options or SamplingOptions()
    ends = stop_tokens_of(model) if stop_tokens is None else tuple(stop_tokens)
    options = replace(options, stop=(*options.stop, *ends))
    tokens = encode(tokenizer, prompt)
    return _generator_for(model, len(tokens), options, backend, context, compile_options), tokens, options


def _pieces(
    generator: Generator, tokenizer: Any, tokens: Sequence[int], options: SamplingOptions, steps: int | None
) -> Iterator[str]:
    rows = generator.stream([tokens], options, steps=steps)
    return pieces(tokenizer, (token for (token,) in rows if token is not None))


class _Kept(dict[Any, Generator]):
    """A model's generators by backend and its options. A copy of the model has none: they run the original."""

    def __deepcopy__(self, memo: Any) -> _Kept:
        return _Kept()

    def __reduce__(self) -> Any:
        return _Kept, ()


def _generator_for(
    model: Any,
    length: int,
    options: SamplingOptions,
    backend: Any,
    context: int | None,
    compile_options: Mapping[str, Any] | None,
) -> Generator:
    """The model's generator for `backend` with these options, if its cache is of a fitting length and place; else a new
    one."""
    limit = int(model.config.get_text_config(decoder=True).max_position_embeddings)
    check_length(length, options.tokens, min(limit, context or limit))
    wanted = context or min(limit, max(LEAST_CONTEXT, 1 << (length + options.tokens - 1).bit_length()))
    kept = model.__dict__.setdefault(_GENERATORS, _Kept())
    key = backend, tuple(sorted(options_of(model, compile_options).items()))
    found = kept.get(key)
    parameter = next(parameter for parameter in model.parameters() if parameter.is_floating_point())
    if found is not None:
        same = found.device == parameter.device and found.cache.layers[0].keys.dtype == parameter.dtype
        fits = found.cache.length >= wanted if context is None else 0 <= found.cache.length - wanted < CACHE_GRANULE
        if same and fits:
            return found
    kept[key] = Generator(model, wanted, backend, compile_options=compile_options)
    return kept[key]


def parse_device(name: str) -> torch.device:
    """The torch device called `name` (vulkan, vulkan:0, cpu); raises UnknownOptionError for any other."""
    kind, _, index = name.partition(":")
    if kind not in DEVICES or (index and (kind == "cpu" or not index.isdigit())):
        raise UnknownOptionError(f"unknown device {name!r}: choose one of {', '.join(DEVICES)}")
    return torch.device(name)


@torch.no_grad()
def reference_tokens(model: Any, prompt: torch.Tensor, tokens: int) -> tuple[int, ...]:
    """Greedy tokens from `model` run eagerly with a growing cache: what a compiled run is compared with.

    Shares no code with `Generator`: neither cache nor mask nor step.
    """
    produced: list[int] = []
    output = model(input_ids=prompt, use_cache=True)
    argument = cache_argument(model)
    while True:
        token = output.logits[:, -1].argmax(-1, keepdim=True)
        produced.append(int(token.item()))
        if len(produced) == tokens:
            return tuple(produced)
        output = model(input_ids=token, use_cache=True, **{argument: output[argument]})
