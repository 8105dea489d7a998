"""`python -m vkinductor generate`: a language model on Vulkan, checked against CPU eager.

Owns the order of events and what is printed. The model, the loop and the counts come from vkinductor/llm; the
conversation of --chat is in chat.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkinductor.cli.progress import Progress

if TYPE_CHECKING:
    import torch

    from vkinductor.llm.load import LoadedModel
    from vkinductor.llm.sampling import SamplingOptions

DEFAULT_PROMPT = "What is the capital of France?"
DEFAULT_TOKENS = 24
CHAT_TOKENS = 512
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
    add("--tokens", type=int, metavar="N", help=f"new tokens (default: {DEFAULT_TOKENS}; with --chat {CHAT_TOKENS})")
    add("--stream", action="store_true", help="print the text as it comes, up to a token that ends it")
    add("--chat", action="store_true", help="a conversation: one turn a line of stdin, answers on stdout")
    add("--temperature", type=float, default=0.0, help="0: the likeliest token, always (default: %(default)s)")
    add("--top-k", type=int, default=0, metavar="K", help="draw among the K likeliest tokens (default: all)")
    add("--top-p", type=float, default=1.0, metavar="P", help="... that together reach probability P (default: 1)")
    add("--seed", type=int, help="the same seed draws the same tokens (default: another draw each time)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before TEXT; may be given several times")
    add("--steps-per-submit", type=int, metavar="N", help="tokens for each wait for the device (default: adapts)")
    add("--context", type=int, metavar="N", help="tokens that --chat remembers (default: the model's, 4096 at most)")
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
    add(
        "--int8-activations",
        action="store_true",
        help="activations in 8 bits where few rows meet a GGUF file's packed weights: faster, and less exact",
    )
    add("--no-check", action="store_true", help="leave out the comparison with CPU eager")


@dataclass(frozen=True)
class Report:
    """What the command prints and writes as JSON.

    Times are in seconds. Counts "per token" are averages over the decode steps. `gigabytes_per_second` is what decoding
    reads of weights and cache. `equal_tokens` says how many leading tokens are the same as those of the float32 model
    run eagerly on the CPU (None: not compared, as tokens that are drawn never are).
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
    prefill_tokens_per_second: float
    weight_bytes: int
    cache_bytes: int
    gigabytes_per_second: float
    dispatches_per_token: float
    submits_per_token: float
    d2h_bytes_per_token: float
    h2d_bytes_per_token: float
    fallbacks_per_token: float
    fallbacks: dict[str, int]
    equal_tokens: int | None


def run(arguments: argparse.Namespace) -> int:
    """Generate, print, write JSON. Returns 1 after a typed error or when float32 tokens differ."""
    from vkinductor.llm.errors import ModelError
    from vkinductor.runtime.errors import VulkanError

    try:
        if arguments.chat:
            return _chat(arguments)
        report = generate(arguments, Progress(detail=_kernels_so_far))
    except (ModelError, VulkanError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if str(arguments.json) != "-":
        print(describe(report, with_text=not arguments.stream))
    if arguments.json is not None:
        _write_json(report, arguments.json)
    exact = report.dtype == "float32" and report.equal_tokens is not None and not arguments.int8_activations
    return 1 if exact and report.equal_tokens != len(report.tokens) else 0


def generate(arguments: argparse.Namespace, progress: Progress) -> Report:
    """Load the model, run it on the CPU and on the device, and gather what happened."""
    from vkinductor.llm import load
    from vkinductor.llm.generate import WARM_UP_TOKENS, Generator, check_length, reference_tokens
    from vkinductor.llm.text import pieces

    options = _options(arguments, DEFAULT_TOKENS)
    loaded, device, backend = _loaded(arguments, progress)
    prompt = load.encode_prompt(loaded.tokenizer, arguments.prompt)
    check_length(prompt.shape[1], options.tokens, loaded.model.config.max_position_embeddings)
    reference = None
    if not arguments.no_check and options.temperature == 0:
        with progress.stage("running CPU eager in float32 for comparison"):
            reference = reference_tokens(load.reference_model(loaded), prompt, options.tokens)
    model = _moved(loaded, arguments, device, progress)
    # The first tokens run while compiling: leave room for them even when fewer are asked for.
    length = prompt.shape[1] + max(options.tokens, WARM_UP_TOKENS)
    generator = Generator(model, length, backend, compile_options=_compile_options(arguments, backend))
    prepared = generator.compile(prompt, progress.stage, options)
    rows = prompt.tolist()
    if arguments.stream or arguments.stop or options.temperature:  # else the loop runs on behind the end of the text
        options = replace(options, stop=loaded.stop_tokens)
    if arguments.stream:
        print(file=sys.stderr)
    stage = nullcontext() if arguments.stream else progress.stage(f"generating {options.tokens} tokens")
    with stage, closing(generator.stream(rows, options, steps=arguments.steps_per_submit)) as stream:
        tokens = (token for (token,) in stream if token is not None)
        text = "".join(_shown(pieces(loaded.tokenizer, tokens, arguments.stop), arguments.stream))
    result = generator.last
    assert result is not None
    if not options.stop:
        text = _text(loaded.tokenizer, loaded.stop_tokens, result.tokens)
    counts = result.counts_per_token
    return Report(
        model=loaded.name,
        device=_device_name(device.type, backend),
        dtype=arguments.dtype,
        backend=backend or "none",
        prompt=arguments.prompt,
        text=text.strip(),
        tokens=result.tokens,
        prompt_tokens=result.prompt_tokens,
        graphs=prepared.graphs,
        kernels_compiled=prepared.kernels,
        compile_seconds=prepared.seconds,
        prefill_seconds=result.prefill_seconds,
        decode_seconds=result.decode_seconds,
        tokens_per_second=result.tokens_per_second,
        prefill_tokens_per_second=result.prefill_tokens_per_second,
        weight_bytes=result.weight_bytes,
        cache_bytes=result.cache_bytes,
        gigabytes_per_second=result.gigabytes_per_second,
        dispatches_per_token=counts["dispatches"],
        submits_per_token=counts["submits"],
        d2h_bytes_per_token=counts["d2h_bytes"],
        h2d_bytes_per_token=counts["h2d_bytes"],
        fallbacks_per_token=counts["fallbacks"],
        fallbacks=result.fallbacks,
        equal_tokens=None if reference is None else _equal_prefix(reference, result.tokens),
    )


def _options(arguments: argparse.Namespace, tokens: int) -> SamplingOptions:
    from vkinductor.llm.errors import UnknownOptionError
    from vkinductor.llm.sampling import SamplingOptions

    if any(not text for text in arguments.stop):
        raise UnknownOptionError("--stop wants a text that is not empty")
    if arguments.steps_per_submit is not None and arguments.steps_per_submit < 1:
        raise UnknownOptionError(f"--steps-per-submit must be at least 1, not {arguments.steps_per_submit}")
    return SamplingOptions(
        tokens=tokens if arguments.tokens is None else arguments.tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        seed=arguments.seed,
    )


def _loaded(arguments: argparse.Namespace, progress: Progress) -> tuple[LoadedModel, torch.device, str | None]:
    """The model on the CPU, where it is to run, and the backend; the device is open if it is needed."""
    from vkinductor.llm import load
    from vkinductor.llm.generate import parse_device

    device = parse_device(arguments.device)
    load.parse_dtype(arguments.dtype)  # a wrong name is better found out before the slow work
    backend = _backend(arguments.backend, device.type)
    if device.type == "vulkan" or backend == "vulkan":
        _require_device()
    with progress.stage("loading the model"):
        loaded = load.load(arguments.model, packed=arguments.packed)
    if loaded.note:
        print(f"note: {loaded.note}", file=sys.stderr)
    return loaded, device, backend


def _compile_options(arguments: argparse.Namespace, backend: str | None) -> dict[str, Any]:
    """Options of the backend."""
    from vkinductor.llm.errors import UnknownOptionError

    if arguments.int8_activations and backend != "vulkan":
        raise UnknownOptionError("--int8-activations is an option of the backend vulkan")
    return {"int8_activations": True} if arguments.int8_activations else {}


def _moved(loaded: LoadedModel, arguments: argparse.Namespace, device: torch.device, progress: Progress) -> Any:
    from vkinductor.llm.load import parse_dtype

    with progress.stage(f"moving the weights to {device} as {arguments.dtype}"):
        return loaded.model.to(dtype=parse_dtype(arguments.dtype)).to(device)


def _chat(arguments: argparse.Namespace) -> int:
    from vkinductor.cli.chat import converse
    from vkinductor.llm.generator_engine import GeneratorEngine

    options = _options(arguments, CHAT_TOKENS)
    progress = Progress(detail=_kernels_so_far)
    loaded, device, backend = _loaded(arguments, progress)
    model = _moved(loaded, arguments, device, progress)
    engine = GeneratorEngine(
        model,
        loaded.tokenizer,
        loaded.name,
        context=arguments.context,
        stop_tokens=loaded.stop_tokens,
        backend=backend,
        steps=arguments.steps_per_submit,
        compile_options=_compile_options(arguments, backend),
    )
    engine.generator.compile([0] * 8, progress.stage, options)
    converse(engine, options, tuple(arguments.stop), sys.stdin, sys.stdout)
    return 0


def _shown(pieces: Iterator[str], show: bool) -> Iterator[str]:
    """The pieces, printed as they come if `show`."""
    for piece in pieces:
        if show:
            print(piece, end="", flush=True)
        yield piece
    if show:
        print(flush=True)


def describe(report: Report, with_text: bool = True) -> str:
    """The report as lines of text for people; without the text where that was printed as it came."""
    lines = [
        *(["", f"prompt:      {report.prompt}", f"text:        {report.text}"] if with_text else []),
        "",
        f"model:       {report.model}, {report.dtype}, backend {report.backend}",
        f"device:      {report.device}",
        f"compile:     {report.graphs} graphs, {report.kernels_compiled} kernels, "
        f"{report.compile_seconds:.1f} s (kernels from the disk cache are not counted)",
        f"prefill:     {report.prompt_tokens} tokens in {report.prefill_seconds:.3f} s "
        f"({report.prefill_tokens_per_second:.0f} tokens/s)",
        f"decode:      {report.tokens_per_second:.1f} tokens/s "
        f"({report.gigabytes_per_second:.1f} GB/s of weights and cache)",
        f"a token:     {report.dispatches_per_token:.1f} kernel dispatches, "
        f"{report.submits_per_token:.1f} submits, {report.fallbacks_per_token:.1f} fallbacks, "
        f"{report.d2h_bytes_per_token:.0f} bytes to the host, {report.h2d_bytes_per_token:.0f} from it",
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


def _text(tokenizer: Any, ends: tuple[int, ...], tokens: tuple[int, ...]) -> str:
    """The tokens as text up to the first end token: the loop runs on behind it, the answer does not."""
    stop = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return str(tokenizer.decode(tokens[:stop], skip_special_tokens=True))


def _equal_prefix(expected: tuple[int, ...], actual: tuple[int, ...]) -> int:
    pairs = zip(expected, actual, strict=False)  # a stop may have ended what was generated
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
