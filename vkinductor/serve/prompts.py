"""From a request to a job's prompt and options: token ids that fit the context, ranges that depend on the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkinductor.llm.sampling import SamplingOptions
from vkinductor.serve.errors import ContextLengthError, InvalidRequestError
from vkinductor.serve.schema import ChatRequest, CompletionRequest, GenerationRequest
from vkinductor.serve.tokenizer import PLAIN_STOP, SharedTokenizer

# OpenAI's defaults where a request says nothing.
TEMPERATURE = 1.0
TOP_P = 1.0


@dataclass(frozen=True)
class Plan:
    """What a job needs of a request: token ids, options, stop strings."""

    prompt: tuple[int, ...]
    options: SamplingOptions
    stops: tuple[str, ...]


def plan(
    request: ChatRequest | CompletionRequest, tokenizer: SharedTokenizer, context: int, stop_tokens: tuple[int, ...]
) -> Plan:
    """Encode a request's prompt and check it against a context of that many tokens.

    Takes milliseconds for long prompts: not for an event loop. Raises ContextLengthError when no new token would fit,
    InvalidRequestError for token ids the model does not have or a ``max_tokens`` over the context.
    """
    wanted = request.wanted_tokens()
    if wanted is not None and wanted > context:
        raise InvalidRequestError(f"max_tokens is {wanted}: the context holds {context} tokens", param="max_tokens")
    stops = tuple(request.stop)
    if isinstance(request, ChatRequest):
        prompt, field = tokenizer.encode_chat([message.turn() for message in request.messages]), "messages"
        if not tokenizer.has_template:
            stops = (*stops, PLAIN_STOP)
    elif isinstance(request.prompt, str):
        prompt, field = tokenizer.encode(request.prompt), "prompt"
    else:
        prompt, field = _checked(request.prompt, tokenizer), "prompt"
    if not prompt and tokenizer.beginning is not None:
        prompt = (tokenizer.beginning,)
    if not prompt:
        raise InvalidRequestError("the prompt is empty, and the model has no token to begin a text with", param=field)
    if len(prompt) >= context:
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens: the context holds {context}, the answer included", param=field
        )
    room = context - len(prompt)
    return Plan(prompt, _options(request, room if wanted is None else min(wanted, room), stop_tokens), stops)


def _options(request: GenerationRequest, tokens: int, stop_tokens: tuple[int, ...]) -> SamplingOptions:
    return SamplingOptions(
        tokens=tokens,
        temperature=TEMPERATURE if request.temperature is None else request.temperature,
        top_k=request.top_k or 0,
        top_p=TOP_P if request.top_p is None else request.top_p,
        seed=request.seed,
        stop=stop_tokens,
    )


def _checked(tokens: Sequence[int], tokenizer: SharedTokenizer) -> tuple[int, ...]:
    limit = tokenizer.vocabulary
    for place, token in enumerate(tokens):
        if token < 0 or (limit is not None and token >= limit):
            known = "are not negative" if limit is None else f"are from 0 to {limit - 1}"
            raise InvalidRequestError(f"prompt[{place}] is {token}: token ids {known}", param="prompt")
    return tuple(tokens)
