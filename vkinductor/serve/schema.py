"""The two requests that generate, as pydantic models: types, ranges, and one clear message for the first mistake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import pydantic_core
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from vkinductor.serve import fields
from vkinductor.serve.errors import InvalidRequestError
from vkinductor.serve.limits import Limits

# OpenAI's default for completions; a chat goes on to the end of its turn or of the context.
COMPLETION_TOKENS = 16

# A template of the model's knows these; OpenAI's newer name for the system's turn is the other.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

SEED_LIMIT = 1 << 63


def _stops(value: Any) -> Any:
    """One string or a list of strings as a list; their number and lengths are checked against the limits later."""
    if value is None:
        return []
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise ValueError("must be a string or a list of strings, none of them empty")
    return stops


def _content(value: Any) -> Any:
    """A string, or parts of text joined."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of parts of type text")
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ValueError(f"parts must be of type text and hold one: this model reads nothing else, not {kind!r}")
        texts.append(part["text"])
    return "".join(texts)


def _prompt(value: Any) -> Any:
    """A string or token ids; a list that holds one of these counts as that one."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(token, int) and not isinstance(token, bool) for token in value):
        return value
    if isinstance(value, list) and len(value) > 1 and all(isinstance(one, str | list) for one in value):
        raise ValueError("must be one prompt: send several in requests of their own")
    raise ValueError("must be a string or a list of token ids")


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class Message(_Strict):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_content)]
    # Clients send an answer back as they got it: these come along, and say nothing when they are empty.
    name: str | None = None
    refusal: None = None
    audio: None = None
    annotations: list[Any] | None = None
    tool_calls: Annotated[list[Any] | None, Field(max_length=0)] = None
    function_call: None = None

    def turn(self) -> dict[str, str]:
        """Role and content as chat templates take them."""
        return {"role": ROLES[self.role], "content": self.content}


class StreamOptions(_Strict):
    """Options of a stream."""

    include_usage: bool = False
    include_obfuscation: bool = False
    """Padding against eavesdroppers who see lengths: not done, as documented."""


class GenerationRequest(_Strict):
    """What both requests share. ``top_k`` (0: all tokens) is an extension."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    top_k: Annotated[int | None, Field(ge=0, lt=1 << 31)] = None
    seed: Annotated[int | None, Field(ge=-SEED_LIMIT, lt=SEED_LIMIT)] = None
    stop: Annotated[list[str], BeforeValidator(_stops)] = []

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream to be true")
        return self

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def wanted_tokens(self) -> int | None:
        """New tokens at most; None: as many as fit."""
        return self.max_tokens


class ChatRequest(GenerationRequest):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None

    @model_validator(mode="after")
    def _one_number_of_tokens(self) -> ChatRequest:
        both = self.max_tokens, self.max_completion_tokens
        if None not in both and both[0] != both[1]:
            raise ValueError("max_tokens and max_completion_tokens are two names of one number: send one of them")
        return self

    def wanted_tokens(self) -> int | None:
        """New tokens at most; None: as many as fit."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens


class CompletionRequest(GenerationRequest):
    """The body of /v1/completions: text, or token ids."""

    prompt: Annotated[str | list[int], BeforeValidator(_prompt)]

    def wanted_tokens(self) -> int | None:
        """New tokens at most."""
        return COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens


Request = TypeVar("Request", bound=GenerationRequest)


def parse(body: bytes, schema: type[Request], limits: Limits) -> Request:
    """The request that a body holds. Raises InvalidRequestError for the first thing wrong with it."""
    try:
        values = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(values, dict):
        raise InvalidRequestError("the body must be a JSON object", code="invalid_json")
    _check_counts(values, limits)
    try:
        request = schema.model_validate(fields.take_out(values))
    except ValidationError as error:
        raise _invalid(error) from None
    long = next((stop for stop in request.stop if len(stop) > limits.stop_characters), None)
    if long is not None:
        message = f"a stop string has {len(long)} characters: the limit is {limits.stop_characters}"
        raise InvalidRequestError(message, param="stop")
    return request


def _check_counts(values: Mapping[str, Any], limits: Limits) -> None:
    """Lengths first: a list that is too long is not worth a look at each of its elements."""
    for name, limit in (("messages", limits.messages), ("stop", limits.stops)):
        value = values.get(name)
        if isinstance(value, list) and len(value) > limit:
            raise InvalidRequestError(f"{name} has {len(value)} elements: the limit is {limit}", param=name)


def _invalid(error: ValidationError) -> InvalidRequestError:
    first = error.errors(include_url=False, include_context=False)[0]
    param = _path(first["loc"])
    if first["type"] == "missing":
        return InvalidRequestError(f"{param} is missing", param=param)
    if first["type"] == "extra_forbidden":
        return InvalidRequestError(f"unknown field {param}", param=param, code="unknown_parameter")
    text = first["msg"].removeprefix("Value error, ")
    text = text[0].lower() + text[1:]
    return InvalidRequestError(f"{param}: {text}" if param else text, param=param or None)


def _path(location: tuple[int | str, ...]) -> str:
    """A place in the body as people write it: messages[0].content."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif path:
            path += f".{step}"
        else:
            path = step
    return path[:200]
