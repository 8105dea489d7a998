"""The graphs of generation: a prompt, and one token chosen greedily or by drawing, all state in tensors.

Owns what runs on the device from one token to the next. The driver (generator.py) owns when it runs. Nothing goes
between host and device in a step: the token is read from and written to `History`, and what chooses it lies in
`Sampler`, so steps can follow each other without a host that waits for them.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from vkinductor.device.sampling import sample
from vkinductor.llm.sampling import SamplingOptions


class Sampler:
    """The options of sampling as tensors on the device, so that other values of them compile nothing.

    `draws` (float32, (slots, batch)) has for each slot the uniform numbers by which the token for it is drawn. They
    come from a generator on the host: the same seed draws the same tokens on every device, however many steps a submit
    takes.
    """

    def __init__(self, slots: int, batch: int, device: torch.device):
        self.draws = torch.zeros(slots, batch, device=device)
        self.temperature = torch.zeros(1, device=device)
        self.top_k = torch.zeros(1, dtype=torch.int64, device=device)
        self.top_p = torch.ones(1, device=device)

    def prepare(self, options: SamplingOptions, first: int) -> None:
        """Set the options; `first` is the slot of the first new token. Uploads the draws of all tokens at once."""
        self.temperature.fill_(options.temperature)
        if options.temperature == 0:
            return
        self.top_k.fill_(options.top_k)
        self.top_p.fill_(options.top_p)
        generator = torch.Generator()
        if options.seed is None:
            generator.seed()
        else:
            generator.manual_seed(options.seed)
        count = min(options.tokens, self.draws.shape[0] - first)
        self.draws[first : first + count].copy_(torch.rand(count, self.draws.shape[1], generator=generator))

    def draw(self, logits: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        """Tokens (int64, (batch, 1)) for `slot` (int64, (1,)) from logits (batch, vocabulary)."""
        uniform = self.draws.index_select(0, slot)[0]
        return sample(logits, uniform, self.temperature, self.top_k, self.top_p)


class History:
    """The token of each slot: int64, (slots, batch). Slots are rows, so that those of one chunk are read at once."""

    def __init__(self, slots: int, batch: int, device: torch.device):
        self.tokens = torch.zeros(slots, batch, dtype=torch.int64, device=device)

    def read(self, slot: torch.Tensor) -> torch.Tensor:
        """The tokens at `slot` (int64, (1,)): (batch, 1)."""
        return self.tokens.index_select(0, slot).t()

    def write(self, slot: torch.Tensor, tokens: torch.Tensor) -> None:
        """Put tokens (batch, 1) at `slot` (int64, (1,))."""
        self.tokens.index_copy_(0, slot, tokens.t())


class Step(torch.nn.Module):
    """One forward pass of `model` over new tokens; the token that follows goes into the history.

    Each public method is compiled on its own: the prompt with a symbolic number of tokens, the others for exactly one.
    """

    def __init__(self, model: Any, cache: Any):
        super().__init__()
        self.model = model
        self.cache = cache
        slots, batch, device = cache.length + 1, cache.batch, cache.position.device  # the last token is never run
        self.sampler = Sampler(slots, batch, device)
        self.history = History(slots, batch, device)
        self._cache_argument = cache_argument(model)

    def prefill(self, tokens: torch.Tensor) -> None:
        """Run (part of) a prompt, int64 (batch, length), from the cache's position on.

        Draws whatever the temperature, which costs a prompt nothing: at 0 that is the likeliest token.
        """
        logits, slot = self._logits(tokens)
        self.history.write(slot, self.sampler.draw(logits, slot))

    def greedy(self) -> None:
        """Run the token at the cache's position; the likeliest one follows."""
        logits, slot = self._logits(self.history.read(self.cache.position))
        self.history.write(slot, logits.argmax(-1, keepdim=True))

    def sampled(self) -> None:
        """Run the token at the cache's position; one that is drawn follows."""
        logits, slot = self._logits(self.history.read(self.cache.position))
        self.history.write(slot, self.sampler.draw(logits, slot))

    def _logits(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (batch, vocabulary) behind the last token, and the slot of the next, to which the cache advances."""
        length = tokens.shape[1]
        slots = self.cache.position + torch.arange(length, device=tokens.device)
        following = self.cache.position + length
        output = self.model(
            input_ids=tokens,
            attention_mask=self.cache.attention_mask(slots),
            position_ids=self.cache.positions(slots),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: self.cache},
        )
        self.cache.position.copy_(following)
        return output.logits[:, -1], following


def cache_argument(model: Any) -> str:
    """What `model.forward` calls its cache: `past_key_values` became `cache` in transformers 5.24."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
