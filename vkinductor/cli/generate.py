"""`python -m vkinductor generate`: a language model on Vulkan, checked against CPU eager.

Owns the order of events and what is printed. The model, the loop and the counts come from vkinductor/llm.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vkinductor.cli.progress import Progress

DEFAULT_PROMPT = "What is the capital of France?"
DEFAULT_TOKENS = 24
DTYPE_NAMES = ("float32", "float16", "bfloat16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    add = parser.add_argument
    add(
        "--model",
        metavar="DIR_OR_GGUF",
        help="GGUF file or Hugging Face directory (default: SmolLM2-135M)",
    )
    add("--prompt", default=DEFAULT_PROMPT, help="one user turn (default: %(default)r)")
    add("--tokens", type=int, default=DEFAULT_TOKENS, metavar="N", help="new tokens (default: %(default)s)")
    add("--device", default="vulkan", help="vulkan, vulkan:0 or cpu (default: %(default)s)")
    add("--dtype", default="float32", help=f"{', '.join(DTYPE_NAMES)} (default: %(default)s)")
    add(
        "--packed",
        action=argparse.BooleanOptionalAction,
        help="keep a GGUF file's weights in its block formats, or expand them to floats (default: packed where the "
        "architecture and the formats are known)",
    )
    add("--json", type=Path, metavar="FILE", help="write what was measured to FILE as well ('-': stdout)")
    add(
        "--backend",
        help="torch.compile backend, or none to run eagerly (default: vulkan; none with --device cpu). "
        "--device cpu --backend vulkan keeps the model on the CPU and mirrors its weights",
    )
    add("--no-check", action="store_true", help="leave out the comparison with CPU eager")


@dataclass(frozen=True)
class Report:
    """What the command prints and writes as JSON.

    Times are in seconds. Counts "per token" are averages over the decode steps. `equal_tokens` says how
    many leading tokens are the same as those of the float32 model run eagerly on the CPU (None: not
    compared).
    """

    model: str
    device: str
    dtype: str
    backend: str
    prompt: str
    text: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    graphs: int
    kernels_compiled: int
    compile_seconds: float
    prefill_seconds: float
    decode_seconds: float
    tokens_per_second: float
    weight_bytes: int
    dispatches_per_token: float
    submits_per_token: float
    fallbacks_per_token: float
    fallbacks: dict[str, int]
    equal_tokens: int | None


def run(arguments: argparse.Namespace) -> int:
    """Generate, print, write JSON. Returns 1 after a typed error or when float32 tokens differ."""
    from vkinductor.llm.errors import ModelError
    from vkinductor.runtime.errors import VulkanError

    try:
        report = generate(arguments, Progress(detail=_kernels_so_far))
    except (ModelError, VulkanError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if str(arguments.json) != "-":
        print(describe(report))
    if arguments.json is not None:
        _write_json(report, arguments.json)
    exact = report.dtype == "float32" and report.equal_tokens is not None
    return 1 if exact and report.equal_tokens != len(report.tokens) else 0


def generate(arguments: argparse.Namespace, progress: Progress) -> Report:
    """Load the model, run it on the CPU and on the device, and gather what happened."""
    from vkinductor.llm import generate as loop
    from vkinductor.llm import load

    device, dtype = loop.parse_device(arguments.device), load.parse_dtype(arguments.dtype)
    backend = _backend(arguments.backend, device.type)
    if device.type == "vulkan" or backend == "vulkan":
        _require_device()
    with progress.stage("loading the model"):
        loaded = load.load(arguments.model, packed=arguments.packed)
    if loaded.note:
        print(f"note: {loaded.note}", file=sys.stderr)
    prompt = load.encode_prompt(loaded.tokenizer, arguments.prompt)
    loop.check_length(prompt.shape[1], arguments.tokens, loaded.model.config.max_position_embeddings)
    reference = None
    if not arguments.no_check:
        with progress.stage("running CPU eager in float32 for comparison"):
            reference = loop.reference_tokens(load.reference_model(loaded), prompt, arguments.tokens)
    with progress.stage(f"moving the weights to {device} as {arguments.dtype}"):
        model = loaded.model.to(dtype=dtype).to(device)
    # The first tokens run while compiling: leave room for them even when fewer are asked for.
    generator = loop.Generator(model, prompt.shape[1] + max(arguments.tokens, loop.WARM_UP_TOKENS), backend)
    prepared = generator.compile(prompt, progress.stage)
    with progress.stage(f"generating {arguments.tokens} tokens"):
        result = generator.generate(prompt, arguments.tokens)
    return Report(
        model=loaded.name,
        device=_device_name(device.type, backend),
        dtype=arguments.dtype,
        backend=backend or "none",
        prompt=arguments.prompt,
        text=_text(loaded.tokenizer, loaded.model, result.tokens),
        tokens=result.tokens,
        prompt_tokens=result.prompt_tokens,
        graphs=prepared.graphs,
        kernels_compiled=prepared.kernels,
        compile_seconds=prepared.seconds,
        prefill_seconds=result.prefill_seconds,
        decode_seconds=result.decode_seconds,
        tokens_per_second=result.tokens_per_second,
        weight_bytes=loaded.weight_bytes,
        dispatches_per_token=result.counts_per_token["dispatches"],
        submits_per_token=result.counts_per_token["submits"],
        fallbacks_per_token=result.counts_per_token["fallbacks"],
        fallbacks=result.fallbacks,
        equal_tokens=None if reference is None else _equal_prefix(reference, result.tokens),
    )


def describe(report: Report) -> str:
    """The report as lines of text for people."""
    bandwidth = report.weight_bytes * report.tokens_per_second / 1e9
    lines = [
        "",
        f"prompt:      {report.prompt}",
        f"text:        {report.text}",
        "",
        f"model:       {report.model}, {report.dtype}, backend {report.backend}",
        f"device:      {report.device}",
        f"compile:     {report.graphs} graphs, {report.kernels_compiled} kernels, "
        f"{report.compile_seconds:.1f} s (kernels from the disk cache are not counted)",
        f"prefill:     {report.prompt_tokens} tokens in {report.prefill_seconds:.3f} s",
        f"decode:      {report.tokens_per_second:.1f} tokens/s ({bandwidth:.1f} GB/s of weights)",
        f"a token:     {report.dispatches_per_token:.1f} kernel dispatches, "
        f"{report.submits_per_token:.1f} submits, {report.fallbacks_per_token:.1f} fallbacks",
    ]
    if report.fallbacks:
        named = ", ".join(f"{op} ({count})" for op, count in sorted(report.fallbacks.items()))
        lines.append(f"fallbacks:   {named}")
    total = len(report.tokens)
    if report.equal_tokens is None:
        lines.append("check:       not compared with CPU eager")
    elif report.equal_tokens == total:
        lines.append(f"check:       all {total} tokens equal CPU eager's (float32)")
    else:
        lines.append(
            f"check:       tokens DIFFER from CPU eager's (float32): "
            f"the first {report.equal_tokens} of {total} are equal"
        )
    return "\n".join(lines)


def _backend(name: str | None, device: str) -> str | None:
    if name is None:
        return "vulkan" if device == "vulkan" else None
    if name == "none":
        return None
    import torch

    from vkinductor.llm.errors import UnknownOptionError

    known = torch.compiler.list_backends(exclude_tags=())
    if name not in known:
        raise UnknownOptionError(f"unknown backend {name!r}: choose none or one of {', '.join(known)}")
    return name


def _require_device() -> None:
    """Open the Vulkan device before the slow work: its absence is better found out at once."""
    from vkinductor.runtime import context

    context.get()


def _device_name(device: str, backend: str | None) -> str:
    if device == "vulkan" or backend == "vulkan":
        from vkinductor.runtime import context

        return context.get().info.name
    return "cpu"


def _text(tokenizer: Any, model: Any, tokens: tuple[int, ...]) -> str:
    """The tokens as text up to the first end token: the loop runs on behind it, the answer does not."""
    ends = model.generation_config.eos_token_id
    ends = set(ends) if isinstance(ends, list) else {ends}
    stop = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return str(tokenizer.decode(tokens[:stop], skip_special_tokens=True)).strip()


def _equal_prefix(expected: tuple[int, ...], actual: tuple[int, ...]) -> int:
    pairs = zip(expected, actual, strict=True)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), len(actual))


def _kernels_so_far() -> str:
    from vkinductor.runtime.stats import counters

    count = counters.snapshot()["kernels_compiled"]
    return f"{count} kernels compiled" if count else ""


def _write_json(report: Report, path: Path) -> None:
    text = json.dumps(asdict(report), indent=2) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        path.write_text(text)
