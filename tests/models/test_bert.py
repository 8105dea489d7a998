"""An embedding model: transformers' BertModel with its real structure and random weights."""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, BertModel

CONFIG = BertConfig(
    vocab_size=211,
    hidden_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=192,
    max_position_embeddings=64,
    attn_implementation="sdpa",
)


def bert(**changes: int) -> BertModel:
    torch.manual_seed(0)
    return BertModel(BertConfig.from_dict({**CONFIG.to_dict(), **changes})).eval()


def batch(rows: int, length: int, padded: int = 0) -> dict[str, torch.Tensor]:
    """Random token ids; the last row ends in `padded` tokens of padding."""
    generator = torch.Generator().manual_seed(rows * length)
    mask = torch.ones(rows, length, dtype=torch.int64)
    if padded:
        mask[-1, -padded:] = 0
    ids = torch.randint(0, CONFIG.vocab_size, (rows, length), generator=generator)
    kinds = torch.randint(0, CONFIG.type_vocab_size, (rows, length), generator=generator)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}


@pytest.mark.parametrize("mode", ["cpu tensors", "device tensors"])
@torch.no_grad()
def test_equals_cpu_eager(compare, mode):
    compare(bert(), batch(3, 23, padded=7), mode)


@torch.no_grad()
def test_mean_pooled_embeddings_of_many_lengths():
    model = bert(num_hidden_layers=1)  # symbolic sizes take most of the time, in each layer the same

    def embed(input_ids, attention_mask, token_type_ids):
        hidden = model(input_ids, attention_mask, token_type_ids).last_hidden_state
        weights = attention_mask[..., None].to(hidden.dtype)
        pooled = (hidden * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(pooled, dim=-1)

    compiled = torch.compile(embed, backend="vulkan", fullgraph=True, dynamic=True)
    for rows, length in ((2, 16), (3, 31), (5, 64)):
        inputs = batch(rows, length, padded=4)
        torch.testing.assert_close(compiled(**inputs), embed(**inputs))
