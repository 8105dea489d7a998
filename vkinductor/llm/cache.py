"""A key/value cache of fixed size whose layers share one position counter on the device.

Owns the cache's memory and the write of new keys and values. `transformers.StaticCache` keeps a counter in
every layer, which costs a decode step one more kernel a layer; here the position is one tensor, advanced
once a step. This module imports `transformers`: import it after `load` has.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, StaticLayer

from vkinductor.llm.errors import UnsupportedModelError


class SharedPositionLayer(StaticLayer):
    """One layer's keys and values, each of shape (batch, key/value heads, length, head dimension).

    `position` (int64, shape (1,)) is shared with all other layers and never written here.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, position: torch.Tensor):
        super().__init__(max_cache_len=keys.shape[2])
        self.keys: torch.Tensor = keys
        self.values: torch.Tensor = values
        self.device, self.dtype = keys.device, keys.dtype
        self.position = position
        self.is_initialized = True

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Write keys and values (batch, heads, new tokens, width) at `position`; return the whole cache."""
        index = self.position + torch.arange(key_states.shape[2], device=self.device)
        self.keys.index_copy_(2, index, key_states)
        self.values.index_copy_(2, index, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> Any:
        """Tokens seen so far, as a tensor: reading it as a number would break the graph."""
        return self.position


class StaticKVCache(Cache):
    """Keys and values of all layers for `batch` sequences of at most `length` tokens, in `dtype` on `device`.

    `start` (int64, shape (batch,)): each sequence's first slot, where sequences are padded at the left to end together;
    None for one sequence, which starts at slot 0. Layers with a sliding window keep all keys too; the mask hides those
    that are out of it. Raises UnsupportedModelError for a model with other kinds of layers.
    """

    def __init__(self, config: Any, length: int, device: torch.device, dtype: torch.dtype, batch: int = 1):
        config = config.get_text_config(decoder=True)
        self.windows = windows(config, length)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (batch, heads, length, width)
        self.length = length
        self.batch = batch
        self.start = torch.zeros(batch, dtype=torch.int64, device=device) if batch > 1 else None
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        super().__init__(
            layers=[
                SharedPositionLayer(
                    torch.zeros(shape, dtype=dtype, device=device),
                    torch.zeros(shape, dtype=dtype, device=device),
                    self.position,
                )
                for _ in range(config.num_hidden_layers)
            ]
        )

    def attention_mask(self, slots: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        """What tokens at `slots` (int64, (tokens,)) see: bool, (batch or 1, 1, tokens, length), true where seen.

        A dict of those by kind where the model's layers are of several. Models take masks of four dimensions as they
        are, which keeps every other way of making one out of the graph.
        """
        places = torch.arange(self.length, device=slots.device)
        seen = (places[None, :] <= slots[:, None])[None, None]
        if self.start is not None:
            seen = seen & (places >= self.start[:, None])[:, None, None]
        masks = {
            kind: seen if window is None else seen & (places[None, :] > slots[:, None] - window)
            for kind, window in self.windows.items()
        }
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def positions(self, slots: torch.Tensor) -> torch.Tensor:
        """Each sequence's positions of tokens at `slots` (int64, (tokens,)): int64, (batch or 1, tokens)."""
        if self.start is None:
            return slots[None]
        return (slots[None] - self.start[:, None]).clamp(min=0)  # padding is seen by nobody: any position will do

    def rewind(self, length: int = 0) -> None:
        """Forget all but the first `length` slots. Keys and values stay: the mask hides what lies at or after the
        position."""
        self.position.fill_(length)


def windows(config: Any, length: int) -> dict[str, int | None]:
    """Each kind of layer in `config` and its window, None where it sees all of `length` tokens.

    Raises UnsupportedModelError for kinds that are neither full attention nor sliding windows.
    """
    window = getattr(config, "sliding_window", None)
    # Older configurations name the window only.
    kinds = getattr(config, "layer_types", None) or (("sliding_attention",) if window else ("full_attention",))
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown or ("sliding_attention" in kinds and not window):
        raise UnsupportedModelError(
            f"{config.model_type}: layers of kind {', '.join(sorted(set(kinds)))} (window {window}) are not supported: "
            "the decode loop does full attention and sliding windows"
        )
    # A window that is never filled is full attention.
    return {kind: window if kind == "sliding_attention" and window < length else None for kind in sorted(set(kinds))}
