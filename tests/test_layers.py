"""Imports point downward only: the table below is the architecture."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import vkinductor

PACKAGE = Path(vkinductor.__file__).parent

# part of the package -> the parts it may import. Where a lower part needs a higher one, the higher one
# fills in a hook (device/hooks.py) when it registers itself.
MAY_IMPORT: dict[str, set[str]] = {
    "runtime": set(),
    "templates": {"runtime"},
    "device": {"runtime", "templates"},
    "codegen": {"runtime", "templates", "device"},
    "offload": {"runtime", "templates", "device", "codegen"},
    "backend": {"runtime", "templates", "device", "codegen", "offload"},
    "operators": {"runtime", "device", "codegen"},
    "inspection": {"runtime", "device", "codegen", "backend"},
    "_api": {"runtime", "templates", "device", "codegen", "offload", "operators", "inspection"},
    "llm": {"runtime", "device", "_api", "backend"},
    "serve": {"runtime", "llm"},
    "conformance": {"runtime", "_api", "backend"},
    "sweep": {"runtime", "device", "codegen", "_api", "backend"},
    "cli": {"runtime", "device", "codegen", "_api", "backend", "llm", "serve", "conformance", "operators", "sweep"},
    "__main__": {"cli"},
    "__init__": {"runtime", "_api"},
}

# part -> packages from outside that it must do without, wherever the import stands.
MUST_NOT_IMPORT: dict[str, set[str]] = {
    "runtime": {"torch", "jinja2", "numpy", "transformers"},
    "templates": {"torch", "vulkan", "numpy", "transformers"},
    "device": {"transformers"},
    "codegen": {"vulkan", "transformers"},
    "offload": {"vulkan", "transformers"},
    "backend": {"vulkan", "transformers"},
    "operators": {"vulkan", "transformers"},
    "inspection": {"vulkan", "transformers"},
    "llm": {"vulkan"},
    "serve": {"torch", "vulkan", "transformers"},
    "cli": {"vulkan"},
}

MODULES = sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    """The part a file belongs to: its first folder, or its own name at the top."""
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported_modules(path: Path) -> set[str]:
    """Full names of everything a file imports, inside functions too; relative imports are resolved."""
    package = ("vkinductor", *path.relative_to(PACKAGE).parts[:-1])
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            # `from vkinductor import runtime` imports a part just as `import vkinductor.runtime` does.
            names.update(f"{module}.{alias.name}" for alias in node.names)
    return names


def identify(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", MODULES, ids=identify)
def test_imports_point_downward(path):
    part = part_of(path)
    assert part in MAY_IMPORT, f"{part} is in no layer: add it to MAY_IMPORT"
    used = {name.split(".")[1] for name in imported_modules(path) if name.startswith("vkinductor.")}
    above = {name for name in used & set(MAY_IMPORT) if name != part and name not in MAY_IMPORT[part]}
    assert not above, f"{part} may not import {', '.join(sorted(above))}"


@pytest.mark.parametrize("path", MODULES, ids=identify)
def test_packages_that_a_layer_does_without(path):
    roots = {name.split(".")[0] for name in imported_modules(path)}
    found = roots & MUST_NOT_IMPORT.get(part_of(path), set())
    assert not found, f"{part_of(path)} may not import {', '.join(sorted(found))}"


def test_the_layers_have_no_cycle():
    order: list[str] = []
    remaining = dict(MAY_IMPORT)
    while remaining:
        ready = [part for part, below in remaining.items() if below <= set(order)]
        assert ready, f"a cycle among {', '.join(remaining)}"
        order += ready
        remaining = {part: below for part, below in remaining.items() if part not in ready}


@pytest.mark.parametrize("path", MODULES, ids=identify)
def test_each_module_says_what_it_owns(path):
    assert ast.get_docstring(ast.parse(path.read_text())), "a module starts with a docstring"
