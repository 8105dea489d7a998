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
    """One layer's keys and values, each of shape (1, key/value heads, length, head dimension).

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
        """Write keys and values (1, heads, new tokens, width) at `position`; return the whole cache."""
        index = self.position + torch.arange(key_states.shape[2], device=self.device)
        self.keys.index_copy_(2, index, key_states)
        self.values.index_copy_(2, index, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> Any:
        """Tokens seen so far, as a tensor: reading it as a number would break the graph."""
        return self.position


class StaticKVCache(Cache):
    """Keys and values of all layers for one sequence of at most `length` tokens, in `dtype` on `device`.

    Raises UnsupportedModelError for a model with anything but full attention within `length`.
    """

    def __init__(self, config: Any, length: int, device: torch.device, dtype: torch.dtype):
        config = config.get_text_config(decoder=True)
        require_full_attention(config, length)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (1, heads, length, width)
        self.length = length
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

    def rewind(self) -> None:
        """Forget the sequence. Keys and values stay: the mask hides what lies at or after the position."""
        self.position.zero_()


def require_full_attention(config: Any, length: int) -> None:
    """Raise UnsupportedModelError unless every layer of `config` attends to all of `length` tokens."""
    kinds = set(getattr(config, "layer_types", None) or ("full_attention",))
    window = getattr(config, "sliding_window", None)
    # A window that is never filled is full attention. Older configurations name the window only.
    if kinds <= {"full_attention", "sliding_attention"} and (
        kinds == {"full_attention"} or (window is not None and length <= window)
    ):
        return
    raise UnsupportedModelError(
        f"{config.model_type}: layers of kind {', '.join(sorted(kinds))} (window {window}) over {length} "
        "tokens are not supported: the decode loop does full attention, and sliding windows until one is full"
    )
