"""A tiny random llama and a word-level tokenizer: the structure of a real model in a few kilobytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

VOCABULARY = 101


def tiny_config(**changes):
    """A llama configuration with grouped-query attention, as SmolLM2 has it."""
    from transformers import LlamaConfig

    values = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 256,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "initializer_range": 0.2,  # logits far enough apart for greedy choices to be clear
    }
    return LlamaConfig(**{**values, **changes})


@pytest.fixture(scope="session")
def tiny_llama():
    """A function of changes to the configuration that gives a random model, the same each time."""
    from transformers import LlamaForCausalLM

    def make(**changes):
        torch.manual_seed(0)
        return LlamaForCausalLM(tiny_config(**changes)).eval()

    return make


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory) -> Path:
    """A Hugging Face directory with a tiny model of one layer and a tokenizer of the words w3 ... w100."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("tiny-llama")
    torch.manual_seed(0)
    LlamaForCausalLM(tiny_config(num_hidden_layers=1)).save_pretrained(path)
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, VOCABULARY)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def check_against_floats():
    """A function (file, prompt, number of tokens, the file loaded as floats) -> what the floats write, having checked
    that the packed model has their logits and tokens."""
    from vkinductor.llm import load
    from vkinductor.llm.generate import reference_tokens

    @torch.no_grad()
    def check(path: Path, text: str, tokens: int, floats: load.LoadedModel) -> str:
        prompt = load.encode_prompt(floats.tokenizer, text)
        expected = reference_tokens(floats.model, prompt, tokens)
        whole = torch.cat((prompt, torch.tensor([expected[:-1]])), 1)
        packed = load.load(path, packed=True)
        logits, reference = packed.model(whole).logits, floats.model(whole).logits
        torch.testing.assert_close(logits, reference, rtol=1e-4, atol=1e-4 * float(reference.abs().max()))
        assert tuple(logits[0, prompt.shape[1] - 1 :].argmax(-1).tolist()) == expected
        return packed.tokenizer.decode(expected)

    return check
