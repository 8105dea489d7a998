"""`python -m vkinductor serve`: a language model behind OpenAI's HTTP interface, until it is interrupted.

Owns the order of events: the address first, which may be taken, then the model, which takes long, then connections.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from vkinductor.cli.progress import Progress

if TYPE_CHECKING:
    from vkinductor.llm.engine import Engine

DEFAULT_PORT = 8000
DTYPE_NAMES = ("float32", "float16", "bfloat16")
LEAST_CONTEXT = 16  # what compiling by running takes, and some
LOGGER = "vkinductor.serve"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    add = parser.add_argument
    add("--model", metavar="DIR_OR_GGUF", help="GGUF file or Hugging Face directory (default: SmolLM2-135M)")
    add("--model-name", metavar="NAME", help="what clients call it (default: the file's or directory's name)")
    add("--device", default="vulkan", help="vulkan, vulkan:0 or cpu (default: %(default)s)")
    add("--dtype", default="float32", help=f"{', '.join(DTYPE_NAMES)} (default: %(default)s)")
    add(
        "--context",
        type=int,
        metavar="N",
        help="tokens of a prompt and its answer (default: the model's, 4096 at most)",
    )
    add(
        "--int8-activations",
        action="store_true",
        help="activations in 8 bits where few rows meet a GGUF file's packed weights: faster, and less exact",
    )
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine alone)")
    add("--port", type=int, default=DEFAULT_PORT, help="0: any free one (default: %(default)s)")
    key = parser.add_mutually_exclusive_group()
    key.add_argument("--api-key", metavar="KEY", help="ask clients for it (other users can see it among the processes)")
    key.add_argument("--api-key-file", type=Path, metavar="FILE", help="the same, read from FILE")
    add("--queue", type=int, default=512, metavar="N", help="requests inside at a time (default: %(default)s)")
    add("--max-body", type=int, default=2 << 20, metavar="BYTES", help="of one request (default: %(default)s)")
    add(
        "--grace",
        type=int,
        default=10,
        metavar="S",
        help="for the answer under way at the end (default: %(default)s s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM. Returns 1 after a typed error."""
    from vkinductor.llm.errors import ModelError
    from vkinductor.runtime.errors import VulkanError

    try:
        with _log_on_stderr():
            serve(arguments, Progress())
    except (ModelError, VulkanError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def serve(arguments: argparse.Namespace, progress: Progress) -> None:
    """Bind, load, compile, serve. Raises ModelError or VulkanError for what goes wrong before connections come."""
    server_module = _server_module()
    from vkinductor.llm.errors import UnknownOptionError
    from vkinductor.serve.guard import is_loopback
    from vkinductor.serve.limits import Limits
    from vkinductor.serve.worker import Worker

    limits = Limits(queue=arguments.queue, body_bytes=arguments.max_body)
    if arguments.grace < 0:
        raise UnknownOptionError(f"grace must be at least 0, not {arguments.grace}")
    key = _api_key(arguments)
    bound = server_module.bind(arguments.host, arguments.port)
    try:
        if key is None and not is_loopback(bound.getsockname()[0]):
            print(f"warning: {arguments.host} is open to other machines, and no --api-key is set", file=sys.stderr)
        worker = Worker(lambda: make_engine(arguments, progress))
        engine = worker.start()
        name = arguments.model_name or engine.name
        url = server_module.address_of(bound)

        def announce() -> None:
            print(f"serving {name} (context {engine.context}) on {url}", file=sys.stderr, flush=True)

        server = server_module.Server(
            worker, engine, bound, model=name, limits=limits, key=key, grace=arguments.grace, on_started=announce
        )
        server.serve_to_the_end()
    finally:
        bound.close()


def make_engine(arguments: argparse.Namespace, progress: Progress) -> Engine:
    """Load the model as options say and compile it by generating a few tokens. Called on the worker's thread."""
    from vkinductor.llm import load
    from vkinductor.llm.errors import UnknownOptionError
    from vkinductor.llm.generate import parse_device
    from vkinductor.llm.generator_engine import GeneratorEngine
    from vkinductor.runtime import context

    device, dtype = parse_device(arguments.device), load.parse_dtype(arguments.dtype)
    if arguments.context is not None and arguments.context < LEAST_CONTEXT:
        raise UnknownOptionError(f"context must be at least {LEAST_CONTEXT}, not {arguments.context}")
    if arguments.int8_activations and device.type != "vulkan":
        raise UnknownOptionError("--int8-activations is for the device vulkan")
    if device.type == "vulkan":
        context.get()  # its absence is better found out before the slow work
    with progress.stage("loading the model"):
        loaded = load.load(arguments.model, dtype, device=device)
    if loaded.note:
        print(f"note: {loaded.note}", file=sys.stderr)
    engine = GeneratorEngine(
        loaded.model,
        loaded.tokenizer,
        loaded.name,
        context=arguments.context,
        stop_tokens=loaded.stop_tokens,
        backend="vulkan" if device.type == "vulkan" else None,
        compile_options={"int8_activations": True} if arguments.int8_activations else None,
    )
    engine.compile(progress.stage)
    return engine


def _server_module() -> ModuleType:
    """vkinductor.serve.server, or MissingDependencyError."""
    from vkinductor.llm.errors import MissingDependencyError

    try:
        from vkinductor.serve import server
    except ImportError as error:
        raise MissingDependencyError(
            f"serving needs the packages of the serve extra: run `pip install 'vkinductor[serve]'` ({error})"
        ) from error
    return server


def _api_key(arguments: argparse.Namespace) -> str | None:
    from vkinductor.llm.errors import UnknownOptionError

    if arguments.api_key_file is None:
        key = arguments.api_key
    else:
        try:
            key = arguments.api_key_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UnknownOptionError(f"cannot read the API key: {error}") from error
    if key is not None and (not key or not key.isascii() or not key.isprintable()):
        raise UnknownOptionError("an API key must be one line of printable ASCII, and not empty")
    return key


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    logger, handler = logging.getLogger(LOGGER), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
