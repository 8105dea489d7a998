"""Model families with random weights at small size: transformers' own classes, two or a few layers, one batch each.

The table that the tests and the models page (tools/model_table.py) share. Structure is what counts: every block of the
full model is there once or twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

WIDTH, HEADS, MLP, VOCABULARY = 32, 4, 64, 97

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """A model of transformers and a batch for it.

    ``model``, ``config``: the names of the classes; ``settings``: of the configuration. ``inputs()``: keyword arguments
    of the model, on the CPU. ``trains``: whether its training step is part of the tests.
    """

    name: str
    model: str
    config: str
    inputs: Callable[[], Inputs]
    settings: dict[str, Any]
    trains: bool = False

    def build(self) -> torch.nn.Module:
        """The model on the CPU in evaluation mode, its weights random but the same each time."""
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.settings)
        model: torch.nn.Module = getattr(transformers, self.model)(config)
        with torch.no_grad():
            # transformers' own scale is for wide layers: through narrow ones a signal would fade to zero.
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight.normal_(std=weight[0].numel() ** -0.5)
            self._calibrate(model)
        return model.eval()

    def _calibrate(self, model: torch.nn.Module) -> None:
        """Give batch norms the statistics of the batch and no scale of their own, for the same reason."""
        norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
        if norms:
            momenta = [norm.momentum for norm in norms]
            for norm in norms:
                norm.momentum = 1.0
                torch.nn.init.ones_(norm.weight)
            model.train()(**self.inputs())
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
                # Two rows of one pixel may hardly differ: dividing by that would only magnify rounding errors.
                assert norm.running_var is not None
                norm.running_var.clamp_(min=1.0)


def _tokens(rows: int = 2, length: int = 13) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(rows * length))


def _noise(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


def _text() -> Inputs:
    return {"input_ids": _tokens(), "use_cache": False}


def _padded() -> Inputs:
    """A batch whose last row ends in padding."""
    ids = _tokens()
    mask = torch.ones_like(ids)
    mask[-1, -4:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _sequences() -> Inputs:
    return {"input_ids": _tokens(), "decoder_input_ids": _tokens(2, 7), "use_cache": False}


def _speech() -> Inputs:
    return {"input_features": _noise(2, 16, 40), "decoder_input_ids": _tokens(2, 7), "use_cache": False}


def _image_and_text() -> Inputs:
    return {**_padded(), **_images(32)()}


def _masked_images() -> Inputs:
    """Patches are masked by the order of ``noise``: given, so that both sides mask the same."""
    return {**_images(32)(), "noise": torch.rand(2, 16, generator=torch.Generator().manual_seed(2))}


def _images(size: int) -> Callable[[], Inputs]:
    return lambda: {"pixel_values": _noise(2, 3, size, size)}


_DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": MLP,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ENCODER = {
    "hidden_size": WIDTH,
    "intermediate_size": MLP,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
}
_CLIP_TEXT = {
    **_ENCODER,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_CLIP_VISION = {**_ENCODER, "image_size": 32, "patch_size": 8}

FAMILIES: tuple[Family, ...] = (
    Family("Llama", "LlamaForCausalLM", "LlamaConfig", _text, _DECODER, trains=True),
    Family("Qwen2", "Qwen2ForCausalLM", "Qwen2Config", _text, _DECODER),
    Family("Gemma2", "Gemma2ForCausalLM", "Gemma2Config", _text, {**_DECODER, "head_dim": 8, "sliding_window": 8}),
    Family("Phi", "PhiForCausalLM", "PhiConfig", _text, _DECODER),
    Family(
        "GPT-2",
        "GPT2LMHeadModel",
        "GPT2Config",
        _text,
        {
            "vocab_size": VOCABULARY,
            "n_positions": 64,
            "n_embd": WIDTH,
            "n_layer": 2,
            "n_head": HEADS,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
        trains=True,
    ),
    Family(
        "Mamba",
        "MambaForCausalLM",
        "MambaConfig",
        lambda: {"input_ids": _tokens(2, 8), "use_cache": False},
        {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "state_size": 8, "num_hidden_layers": 2, "time_step_rank": 4},
    ),
    Family(
        "T5",
        "T5ForConditionalGeneration",
        "T5Config",
        _sequences,
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 8, "d_ff": MLP, "num_layers": 2, "num_heads": HEADS},
    ),
    Family(
        "Whisper",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        _speech,
        {
            "vocab_size": VOCABULARY,
            "num_mel_bins": 16,
            "d_model": WIDTH,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": HEADS,
            "decoder_attention_heads": HEADS,
            "encoder_ffn_dim": MLP,
            "decoder_ffn_dim": MLP,
            "max_source_positions": 20,
            "max_target_positions": 16,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
    ),
    Family(
        "CLIP",
        "CLIPModel",
        "CLIPConfig",
        _image_and_text,
        {"text_config": _CLIP_TEXT, "vision_config": _CLIP_VISION, "projection_dim": WIDTH},
    ),
    Family(
        "ViT-MAE",
        "ViTMAEForPreTraining",
        "ViTMAEConfig",
        _masked_images,
        {
            **_ENCODER,
            "image_size": 32,
            "patch_size": 8,
            "decoder_num_attention_heads": HEADS,
            "decoder_hidden_size": WIDTH,
            "decoder_num_hidden_layers": 2,
            "decoder_intermediate_size": MLP,
        },
    ),
    Family(
        "BERT",
        "BertForMaskedLM",
        "BertConfig",
        _padded,
        {
            **_ENCODER,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 32,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        trains=True,
    ),
    Family(
        "Mixtral",
        "MixtralForCausalLM",
        "MixtralConfig",
        _text,
        {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    Family(
        "ResNet",
        "ResNetForImageClassification",
        "ResNetConfig",
        _images(32),
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 2], "num_labels": 10},
        trains=True,
    ),
    Family(
        "ConvNeXt",
        "ConvNextForImageClassification",
        "ConvNextConfig",
        _images(32),
        {"hidden_sizes": [16, 32], "depths": [1, 2], "num_stages": 2, "num_labels": 10, "layer_scale_init_value": 0.5},
    ),
    Family(
        "EfficientNet",
        "EfficientNetForImageClassification",
        "EfficientNetConfig",
        _images(32),
        {
            "image_size": 32,
            "width_coefficient": 1.0,
            "depth_coefficient": 1.0,
            "depth_divisor": 8,
            "kernel_sizes": [3, 5],
            "in_channels": [32, 16],
            "out_channels": [16, 24],
            "depthwise_padding": [],
            "strides": [1, 2],
            "num_block_repeats": [1, 2],
            "expand_ratios": [1, 6],
            "hidden_dim": 1280,
            "num_labels": 10,
        },
    ),
    Family(
        "Swin",
        "SwinForImageClassification",
        "SwinConfig",
        _images(32),
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [2, 1],
            "num_heads": [2, 4],
            "window_size": 4,
            "num_labels": 10,
        },
    ),
    Family(
        "MobileNetV2",
        "MobileNetV2ForImageClassification",
        "MobileNetV2Config",
        _images(32),
        {"image_size": 32, "depth_multiplier": 0.35, "num_labels": 10},
    ),
    Family(
        "SegFormer",
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        _images(32),
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [4, 1],
            "hidden_sizes": [16, 32],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 32,
            "num_labels": 10,
        },
    ),
)

BY_NAME: dict[str, Family] = {family.name: family for family in FAMILIES}
