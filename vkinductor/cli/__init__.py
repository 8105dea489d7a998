"""The command line, `python -m vkinductor COMMAND`: argument parsing and printing, no logic beyond that.

Each command is a module here with `add_arguments(parser)` and `run(arguments) -> int` (the exit code); it
is imported only when it is asked for, so that `info` does not wait for the packages that `generate` needs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

# command -> (module, one-line help)
COMMANDS: dict[str, tuple[str, str]] = {
    "info": ("vkinductor.cli.info", "show devices, limits, features, compiler, versions and cache directory"),
    "generate": ("vkinductor.cli.generate", "run a language model through torch.compile(backend='vulkan')"),
    "serve": ("vkinductor.cli.serve", "offer a language model through OpenAI's HTTP interface"),
    "cache": ("vkinductor.cli.cache", "show, empty, pack and unpack the caches on disk"),
    "warm": ("vkinductor.cli.warm", "run a program to fill the caches, so that they can be shipped with it"),
    "tune": ("vkinductor.cli.tune", "choose kernels by measuring them on this device, for a program or for problems"),
    "ops": ("vkinductor.cli.ops", "list operators: which run on the device, and why the others do not"),
    "conformance": ("vkinductor.cli.conformance", "check every operator that torch has samples for against the CPU"),
    "sweep": ("vkinductor.cli.sweep", "check every kernel template on this device over sizes, dtypes and layouts"),
}


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The whole parser; only `command` gets its own arguments, since they need its module imported."""
    parser = argparse.ArgumentParser(prog="python -m vkinductor", description="PyTorch Inductor on Vulkan")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, text) in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text)
        if name == command:
            importlib.import_module(module).add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (default: the process's arguments) and return its exit code.

    0: done; 1: the command failed, with the reason on stderr; 2: the arguments were wrong.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in arguments if word in COMMANDS), None)
    parsed = build_parser(command).parse_args(arguments)
    module = importlib.import_module(COMMANDS[parsed.command][0])
    try:
        return int(module.run(parsed))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 1
