"""The server around a real engine: a tiny random llama on the device, whose tokens are bytes."""

from __future__ import annotations

import argparse
import io

import pytest
import torch

from vkinductor.cli.progress import Progress

openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")

CONTEXT = 64


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A Hugging Face directory with the model and a byte-level tokenizer without merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("tiny-bytes")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {text: index for index, text in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(path)
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=len(words),
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.2,  # logits far enough apart for greedy choices to be clear
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def test_answers_are_the_models(directory, serve, log, device):
    from vkinductor.cli.serve import make_engine
    from vkinductor.llm.generate import reference_tokens
    from vkinductor.llm.load import load

    options = argparse.Namespace(
        model=str(directory), device="vulkan", dtype="float32", context=CONTEXT, int8_activations=False
    )
    running = serve(lambda: make_engine(options, Progress(io.StringIO())))
    loaded = load(directory)
    prompt = loaded.tokenizer.encode("some text")
    expected = reference_tokens(loaded.model, torch.tensor([prompt]), 24)
    expected = expected[: expected.index(1)] if 1 in expected else expected
    text = loaded.tokenizer.decode(expected, skip_special_tokens=True)

    with openai.OpenAI(base_url=running.url, api_key="x", max_retries=0, timeout=600) as client:

        def ask(**values):
            return client.completions.create(
                model=directory.name, **{"prompt": "some text", "max_tokens": 24, **values}
            )

        answer = ask(temperature=0)
        assert answer.choices[0].text == text
        assert answer.usage.completion_tokens == len(expected)
        chunks = ask(temperature=0, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == text
        drawn = [ask(temperature=1.5, seed=seed).choices[0].text for seed in (1, 1, 2)]
        assert drawn[0] == drawn[1] != drawn[2]
        with ask(prompt="x", max_tokens=CONTEXT, stream=True) as stream:
            next(iter(stream))  # and hang up
        assert ask(temperature=0).choices[0].text == text
        with pytest.raises(openai.BadRequestError, match=f"has {CONTEXT} tokens: the context holds {CONTEXT}"):
            ask(prompt="x" * CONTEXT)
        messages = [{"role": "user", "content": "hello"}]
        chat = client.chat.completions.create(model=directory.name, messages=messages, max_tokens=5)
        assert chat.usage.prompt_tokens == len("User: hello\nAssistant:")
