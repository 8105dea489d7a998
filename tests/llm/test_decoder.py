"""One decoder for every architecture of the table: logits of `transformers`' own models, with and without a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gguf_writing import Q, write

from vkinductor.llm.architectures import ARCHITECTURES
from vkinductor.llm.cache import StaticKVCache
from vkinductor.llm.errors import ModelError, UnknownOptionError, UnsupportedModelError
from vkinductor.llm.generate import Generator, reference_tokens
from vkinductor.llm.gguf_model import load_gguf

WORDS = 101
MIXED = [Q.Q4_0, Q.Q8_0, Q.F16, Q.Q5_1, Q.Q4_1, Q.BF16, Q.Q5_0, Q.F32, Q.IQ4_NL]
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": WORDS,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
KEYS = {"attention.head_count_kv": 2, "feed_forward_length": 96, "attention.layer_norm_rms_epsilon": 1e-6}
GEMMA = {"head_dim": 32, "sliding_window": 5, "rms_norm_eps": 1e-6, "num_hidden_layers": 4}
GEMMA_KEYS = {"attention.key_length": 32, "attention.value_length": 32, "attention.sliding_window": 5}


# name: class of the model, its configuration, keys of the file, formats, tensors of the file alone
def _cases() -> dict[str, tuple[str, dict[str, Any], dict[str, Any], list[Q], dict[str, Any]]]:
    factors = np.linspace(1, 3, 8).astype(np.float32)
    return {
        "llama": ("Llama", {}, {"rope.dimension_count": 16}, MIXED, {}),
        "llama-k-quants": (
            "Llama",
            {"hidden_size": 256, "intermediate_size": 256, "tie_word_embeddings": True, "attention_bias": True},
            {"feed_forward_length": 256},
            [Q.Q4_K, Q.Q6_K, Q.Q2_K, Q.IQ4_XS, Q.Q3_K, Q.Q5_K],
            {},
        ),
        "llama-linear": (
            "Llama",
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}},
            {"rope.freq_base": 5000.0, "rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
            MIXED,
            {},
        ),
        "qwen2": (
            "Qwen2",
            {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
            {"rope.freq_base": 1e6},
            MIXED,
            {},
        ),
        "qwen2-yarn": (
            "Qwen2",
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 10000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                }
            },
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 32,
            },
            MIXED,
            {},
        ),
        "qwen3": ("Qwen3", {"head_dim": 32}, {"attention.key_length": 32, "attention.value_length": 32}, MIXED, {}),
        "gemma2": (
            "Gemma2",
            {**GEMMA, "query_pre_attn_scalar": 32, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0},
            {**GEMMA_KEYS, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0},
            MIXED,
            {},
        ),
        "gemma3": (
            "Gemma3",
            {
                **GEMMA,
                "query_pre_attn_scalar": 32,
                "num_hidden_layers": 7,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                },
            },
            {
                **GEMMA_KEYS,
                "rope.freq_base": 1e6,
                "rope.scaling.type": "linear",
                "rope.scaling.factor": 8.0,
            },
            MIXED,
            {},
        ),
        "phi3": ("Phi3", {"sliding_window": 6}, {"attention.sliding_window": 6}, MIXED, {}),
        "phi3-longrope": (
            "Phi3",
            {
                "original_max_position_embeddings": 16,
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 10000.0,
                    "short_factor": factors.tolist(),
                    "long_factor": (2 * factors).tolist(),
                    "original_max_position_embeddings": 16,
                },
            },
            {"rope.dimension_count": 16, "rope.scaling.original_context_length": 16},
            MIXED,
            {"rope_factors_short.weight": factors, "rope_factors_long.weight": 2 * factors},
        ),
        "gpt2": (
            "GPT2",
            {"n_positions": 128},
            {"attention.layer_norm_epsilon": 1e-5, "feed_forward_length": 256},
            MIXED,
            {},
        ),
    }


CASES = _cases()


def make(name: str, folder) -> tuple[Any, Any]:
    """The model of `transformers` and the file of it."""
    import transformers

    kind, changes, keys, formats, extra = CASES[name]
    torch.manual_seed(0)
    sizes = {**SIZES, "rms_norm_eps": 1e-6, **changes}
    if kind == "GPT2":
        sizes = {
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 4,
            "vocab_size": WORDS,
            "initializer_range": 0.2,
            **changes,
        }
    config = getattr(transformers, f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config")(**sizes)
    model = getattr(transformers, f"{kind}LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(config).eval()
    model.set_attn_implementation("eager")
    for parameter in model.parameters():
        if parameter.dim() == 1:  # norms and biases that are ones and zeros would hide mistakes
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    path = folder / f"{name}.gguf"
    write(path, kind.lower(), model, {**({} if kind == "GPT2" else KEYS), **keys}, formats, extra)
    return model, path


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A function that makes the case of a name once."""
    folder, made = tmp_path_factory.mktemp("models"), {}

    def get(name):
        if name not in made:
            made[name] = make(name, folder)
        return made[name]

    return get


def prompt(length: int, batch: int = 1) -> torch.Tensor:
    return torch.randint(3, WORDS, (batch, length), generator=torch.Generator().manual_seed(length))


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5 * float(expected.abs().max()))


def test_every_architecture_of_the_table_is_a_case():
    # A gemma is a gemma2 without its caps, windows and second norms.
    assert {name.partition("-")[0] for name in CASES} == set(ARCHITECTURES) - {"gemma"}


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_logits(models, name):
    reference, path = models(name)
    model = load_gguf(path, "cpu", torch.float32)
    tokens = prompt(14, batch=2)
    close(model(tokens).logits, reference(tokens).logits)
    close(model(tokens, logits_to_keep=1).logits, reference(tokens).logits[:, -1:])
    # A prompt and single tokens through a cache that grows, as `transformers` has it, and through one of fixed size.
    tokens = tokens[:1]
    static = StaticKVCache(model.config, 32, model.device, model.dtype)
    growing = None
    # Longrope changes all frequencies where a text outgrows the original context: not inside of this one.
    pieces = (12, 1, 1) if "longrope" in name else (9, 1, 1, 3)
    start = 0
    for piece in pieces:
        part = tokens[:, start : start + piece]
        expected = reference(tokens[:, : start + piece]).logits[:, -piece:]
        output = model(part, cache=growing, use_cache=True)
        growing = output.cache
        close(output.logits, expected)
        slots = torch.arange(start, start + piece)
        close(model(part, attention_mask=static.attention_mask(slots), cache=static).logits, expected)
        static.position.add_(piece)
        start += piece


@torch.no_grad()
def test_longrope_beyond_the_original_context(models):
    reference, path = models("phi3-longrope")
    tokens = prompt(20)
    close(load_gguf(path, "cpu", torch.float32)(tokens).logits, reference(tokens).logits)


@torch.no_grad()
def test_frequencies_that_the_file_divides(models, tmp_path):
    """Llama 3's scaling is a tensor of the file; the factors here undo a linear scaling by 2."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}, rms_norm_eps=1e-6
    )
    reference = transformers.LlamaForCausalLM(config).eval()
    factors = np.full(8, 2, np.float32)
    write(tmp_path / "model.gguf", "llama", reference, KEYS, MIXED, {"rope_freqs.weight": factors})
    tokens = prompt(14)
    close(load_gguf(tmp_path / "model.gguf", "cpu", torch.float32)(tokens).logits, reference(tokens).logits)


# Seven layers are traced, and not taken apart as well: writes into a cache are the same for every architecture.
@pytest.mark.parametrize(("name", "backend"), [("llama", "aot_eager"), ("gemma3", "eager")])
def test_the_decode_loop_takes_it_as_it_is(models, name, backend):
    reference, path = models(name)
    model = load_gguf(path, "cpu", torch.float32)
    generator = Generator(model, 64, backend=backend)
    torch._dynamo.reset()
    for length in (9, 1, 17):
        expected = reference_tokens(reference, prompt(length), 12)
        assert generator.generate(prompt(length), 12).tokens == expected
        assert reference_tokens(model, prompt(length), 12) == expected


@torch.no_grad()
def test_half_precision_leaves_packed_weights_and_frequencies(models):
    reference, path = models("gemma2")
    model = load_gguf(path, "cpu", torch.float32)
    packed = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.half()
    assert model.dtype == torch.float16
    for name, buffer in model.named_buffers():
        assert buffer.dtype == packed[name].dtype
        assert torch.equal(buffer, packed[name])
    logits = model(prompt(9)).logits
    assert logits.dtype == torch.float16
    torch.testing.assert_close(logits.float(), reference(prompt(9)).logits, rtol=0.05, atol=0.05)


def test_hidden_states_that_outgrow_halves(models):
    """A gemma3 of 270M, asked a question, has 104,000 among its hidden states: in float16 every token was the first."""
    path = models("gemma3")[1]
    with pytest.raises(UnknownOptionError, match=r"gemma3 go over 65504.*choose bfloat16"):
        load_gguf(path, "cpu", torch.float16)
    model = load_gguf(path, "cpu")
    assert model.dtype == torch.bfloat16
    with pytest.raises(UnknownOptionError, match="choose bfloat16"):
        Generator(model.half(), 64, backend=None)
    assert load_gguf(models("llama")[1], "cpu").dtype == torch.float16


def test_masks_of_another_form_are_refused(models):
    model = load_gguf(models("llama")[1], "cpu", torch.float32)
    with pytest.raises(ModelError, match="four dimensions"):
        model(prompt(5), attention_mask=torch.ones(1, 5, dtype=torch.int64))


def test_unknown_layers_are_refused_by_the_cache(models):
    from dataclasses import replace

    config = load_gguf(models("llama")[1], "cpu", torch.float32).config
    with pytest.raises(UnsupportedModelError, match="recurrent"):
        StaticKVCache(replace(config, layer_types=("recurrent",) * 2), 8, torch.device("cpu"), torch.float32)
