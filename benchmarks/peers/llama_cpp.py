"""llama.cpp's Vulkan build, by PyPI's cyllama-vulkan: decoding with the weights that `llama.py` makes, as a GGUF file.

    PYTHON -m benchmarks.peers.llama_cpp FILE NAME CONTEXT STEPS PREFILL

`write` makes the file (it needs torch and gguf); the process that measures needs cyllama alone. It says "ready" when
the model is loaded, and measures at a line on its input, as the workers of `decode.py` do.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "llama.cpp Vulkan"
REPEATS = 5
WARM_UP_S = 0.5


def prompt_tokens(n: int) -> list[int]:
    """A prompt of so many tokens."""
    return [1 + 7 * i % 1000 for i in range(n)]


def write(model: Any, path: Path) -> None:
    """``model``, a Llama on the CPU, in GGUF: matrices as they are, norms in float32, no tokenizer."""
    import gguf
    import torch

    from ..llama import EPSILON, FORMATS, ROTARY_BASE

    shape = model.shape
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(model.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_dimension_count(shape.head)
    writer.add_rope_freq_base(ROTARY_BASE)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("none")
    number = FORMATS[model.format][0] if model.format in FORMATS else None
    raw = None if number is None else gguf.GGMLQuantizationType(number)

    def matrix(name: str, weight: torch.Tensor) -> None:
        writer.add_tensor(f"{name}.weight", weight.contiguous().numpy(), raw_dtype=raw)

    def interleaved(weight: torch.Tensor) -> torch.Tensor:
        """Rows of each head so that those which rotate together are neighbours, as this architecture has them."""
        return weight.view(-1, 2, shape.head // 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)

    def norm(name: str, weight: torch.Tensor) -> None:
        writer.add_tensor(f"{name}.weight", weight.float().numpy())

    matrix("token_embd", model.embedding.table.weight)
    if not shape.tied:
        matrix("output", model.head.weight)
    norm("output_norm", model.norm.weight)
    for i, layer in enumerate(model.layers):
        attention, mlp = layer.attention, layer.mlp
        norm(f"blk.{i}.attn_norm", layer.attention_norm.weight)
        norm(f"blk.{i}.ffn_norm", layer.mlp_norm.weight)
        matrix(f"blk.{i}.attn_q", interleaved(attention.q.weight))
        matrix(f"blk.{i}.attn_k", interleaved(attention.k.weight))
        matrix(f"blk.{i}.attn_v", attention.v.weight)
        matrix(f"blk.{i}.attn_output", attention.out.weight)
        for name, linear in (("gate", mlp.gate), ("up", mlp.up), ("down", mlp.down)):
            matrix(f"blk.{i}.ffn_{name}", linear.weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Session:
    """A loaded model with its context."""

    def __init__(self, path: str, context: int) -> None:
        # Its own choice of devices leaves software drivers out.
        os.environ.setdefault("GGML_VK_VISIBLE_DEVICES", "0")
        from cyllama.llama import llama_cpp as api

        api.disable_logging()
        api.llama_backend_init()
        api.ggml_backend_load_all()
        devices = [d for d in api.ggml_backend_dev_info() if d["type"] != "CPU"]
        if not devices:
            raise RuntimeError("it found no Vulkan device")
        self.about = {"device": devices[0]["description"]}
        parameters = api.LlamaModelParams()
        parameters.n_gpu_layers = 999
        self.api, self.model = api, api.LlamaModel(path, parameters)
        options = api.LlamaContextParams()
        options.n_ctx, options.n_batch, options.n_ubatch = context, context, min(512, context)
        self.context = api.LlamaContext(self.model, options)
        self.greedy = api.LlamaSampler()
        self.greedy.add_greedy()
        self.used = 0

    def run(self, tokens: list[int]) -> None:
        """Tokens from the cache's end on, until the device is done."""
        self.context.decode(self.api.llama_batch_get_one(tokens, self.used))
        self.context.synchronize()
        self.used += len(tokens)

    def rewind(self, used: int) -> None:
        """Keep so many entries of the cache."""
        self.context.memory_seq_rm(0, used, -1)
        self.used = used

    def steps(self, n: int) -> Iterator[int]:
        """Tokens of so many steps, each chosen from the last one's logits."""
        token = 1
        for _ in range(n):
            self.run([token])
            token = self.greedy.sample(self.context, -1)
            yield token


def measure(session: Session, name: str, context: int, steps: int, prefill: int) -> dict[str, Any]:
    """As a Result of `decode.py`."""
    filled = context - steps
    prompt = prompt_tokens(max(filled, prefill))

    def fill() -> None:
        session.rewind(0)
        # Short contexts a token at a time: a CPU driver takes minutes to compile the products of many.
        chunk = 512 if filled > 1024 else 1
        for at in range(0, filled, chunk):
            session.run(prompt[at : min(at + chunk, filled)])

    fill()
    tokens = list(session.steps(steps))
    start = time.perf_counter()
    while time.perf_counter() - start < WARM_UP_S:
        session.rewind(filled)
        list(session.steps(steps))
    rates, processor = [], time.process_time()
    for _ in range(REPEATS):
        session.rewind(filled)
        start = time.perf_counter()
        for _ in range(steps):  # no sampling: as its own benchmark counts
            session.run([tokens[0]])
        rates.append(steps / (time.perf_counter() - start))
    processor = time.process_time() - processor
    sampled = []
    for _ in range(REPEATS):
        session.rewind(filled)
        start = time.perf_counter()
        list(session.steps(steps))
        sampled.append(steps / (time.perf_counter() - start))
    result = {"problem": name, "system": NAME, "about": session.about}
    result["processor"] = processor / (REPEATS * steps) * 1e6
    result |= {"chained": statistics.median(rates), "read": statistics.median(sampled)}
    if prefill:
        prefills = []
        for _ in range(REPEATS):
            session.rewind(0)
            start = time.perf_counter()
            session.run(prompt[:prefill])
            prefills.append(prefill / (time.perf_counter() - start))
        result["prefill"] = statistics.median(prefills)
        result["after_prompt"] = session.greedy.sample(session.context, -1)
    return result


def main() -> int:
    path, name, context, steps, prefill = sys.argv[1:6]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ready = False
    try:
        session = Session(path, int(context))
        session.run([1])
        print("ready", file=answers, flush=True)
        ready = True
        if not sys.stdin.readline():
            return 1
        result = measure(session, name, int(context), int(steps), min(int(prefill), int(context)))
    except Exception as error:
        if not ready:
            print("ready", file=answers, flush=True)
        lines = str(error).strip().splitlines() or [""]
        result = {"problem": name, "system": NAME, "note": f"{type(error).__name__}: {lines[0][:160]}"}
    print(json.dumps(result), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
