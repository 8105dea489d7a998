# Two commands: `make demo` runs a language model on Vulkan, `make test` runs the tests.
# Both make .venv in this folder first; tools/setup_env.py says what they install and which variables it reads.

VENV ?= .venv
PYTHON_IN_VENV := $(VENV)/bin/python
PYTEST_ARGS ?= -n 2
CONFORMANCE_ARGS ?= --log conformance.jsonl --samples 4

.PHONY: help demo setup setup-dev test drivers versions conformance lint format info clean

help:
	@echo "make demo    a real language model through torch.compile(backend=\"vulkan\")"
	@echo "make test    the tests (make test PYTEST_ARGS='-x tests/runtime' runs some of them)"
	@echo "make drivers    the tests of templates on Mesa 25 and 26 and SwiftShader, unpacked into build/ (DRIVERS_ARGS)"
	@echo "make versions   the tests of the seams to torch on its oldest and newest version, in build/ (VERSIONS_ARGS)"
	@echo "make conformance    every operator against the CPU (hours; stops and goes on; CONFORMANCE_ARGS='sin add')"
	@echo "make lint    ruff and mypy"
	@echo "make format  ruff format"
	@echo "make info    what Vulkan offers on this machine"
	@echo "make clean   remove the environment and the caches of the checks"

setup:
	@python=$$(sh tools/python.sh) && "$$python" tools/setup_env.py --venv "$(VENV)"

setup-dev:
	@python=$$(sh tools/python.sh) && "$$python" tools/setup_env.py --venv "$(VENV)" --dev

demo: setup
	@$(PYTHON_IN_VENV) -m vkinductor generate --prompt "What is the capital of France?" --tokens 24

test: setup-dev
	@$(PYTHON_IN_VENV) -m pytest $(PYTEST_ARGS)

drivers: setup-dev
	@$(PYTHON_IN_VENV) tools/drivers.py $(DRIVERS_ARGS)

versions:
	@python=$$(sh tools/python.sh) && "$$python" tools/versions.py $(VERSIONS_ARGS)

conformance: setup-dev
	@$(PYTHON_IN_VENV) -m vkinductor conformance $(CONFORMANCE_ARGS)

lint: setup-dev
	$(PYTHON_IN_VENV) -m ruff check .
	$(PYTHON_IN_VENV) -m ruff format --check .
	$(PYTHON_IN_VENV) -m mypy

format: setup-dev
	$(PYTHON_IN_VENV) -m ruff check --fix .
	$(PYTHON_IN_VENV) -m ruff format .

info: setup
	@$(PYTHON_IN_VENV) -m vkinductor info

clean:
	rm -rf "$(VENV)" .pytest_cache .mypy_cache .ruff_cache build *.egg-info
