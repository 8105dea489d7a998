"""The engine that generates with one compiled model: what a server or a chat talks to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vkinductor.llm.errors import PromptTooLongError
from vkinductor.llm.generator import WARM_UP_TOKENS, Generator, Stage, never
from vkinductor.llm.reports import CompileReport, Generation
from vkinductor.llm.sampling import SamplingOptions
from vkinductor.llm.stops import stop_tokens_of

# A cache of the whole context of a model made for very long texts would fill the memory of most devices.
DEFAULT_CONTEXT = 4096


class GeneratorEngine:
    """An `engine.Engine` of a model on its device (of `transformers`, or a `decoder.Decoder`).

    `context`: tokens of a prompt and its answer (None: the model's, DEFAULT_CONTEXT at most). `stop_tokens` None:
    those that the model's generation config names. `backend`: of `torch.compile`; None runs eagerly. `steps`: how many
    run for each time that the host waits (None: as many as take a short while). `compile_options`: see `Generator`.
    What a prompt shares with the one before is not run again.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        name: str,
        *,
        context: int | None = None,
        stop_tokens: Sequence[int] | None = None,
        backend: str | Callable[..., Any] | None = "vulkan",
        steps: int | None = None,
        compile_options: Mapping[str, Any] | None = None,
    ):
        limit = int(model.config.get_text_config(decoder=True).max_position_embeddings)
        self.name = name
        self.context = min(limit, DEFAULT_CONTEXT if context is None else context)
        self.tokenizer = tokenizer
        self.stop_tokens = stop_tokens_of(model) if stop_tokens is None else tuple(stop_tokens)
        self.generator = Generator(model, self.context, backend, compile_options=compile_options)
        self.steps = steps

    @property
    def last(self) -> Generation | None:
        """What the last stream produced and cost."""
        return self.generator.last

    def stream(
        self, prompt: Sequence[int], options: SamplingOptions, cancelled: Callable[[], bool] = never
    ) -> Iterator[int]:
        """New token ids as they come: up to a stop token, which is not among them, ``options.tokens``, or the end of
        the context.

        Raises PromptTooLongError when the prompt and one token do not fit into the context.
        """
        room = self.context - len(prompt)
        if room < 1:
            raise PromptTooLongError(
                f"the prompt's {len(prompt)} tokens and a new one exceed the context of {self.context}: shorten it"
            )
        stop = (*options.stop, *self.stop_tokens)
        options = replace(options, tokens=min(options.tokens, room), stop=stop)
        rows = self.generator.stream([prompt], options, steps=self.steps, cancelled=cancelled)
        return (token for (token,) in rows if token is not None)

    def compile(self, stage: Stage | None = None) -> CompileReport:
        """Compile the graphs for prompts, greedy and drawn tokens, so that no request waits for that."""
        words = self.generator.model.config.get_text_config(decoder=True).vocab_size
        prompt = [token % words for token in range(2 + WARM_UP_TOKENS)][: self.context - WARM_UP_TOKENS]
        greedy = self.generator.compile(prompt, stage)
        drawn = self.generator.compile(prompt, stage, SamplingOptions(temperature=1.0))
        return CompileReport(
            greedy.graphs + drawn.graphs, greedy.kernels + drawn.kernels, greedy.seconds + drawn.seconds
        )
