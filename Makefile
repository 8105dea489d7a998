# Two commands: `make demo` runs a language model on Vulkan, `make test` runs the tests.
# Both make .venv in this folder first; tools/setup_env.py says what they install and which variables it reads.

PYTHON_IN_VENV := .venv/bin/python
PYTEST_ARGS ?= -n 2

.PHONY: help demo setup setup-dev test lint format info clean

help:
	@echo "make demo    a real language model through torch.compile(backend=\"vulkan\")"
	@echo "make test    the tests (PYTEST_ARGS='-x tests/runtime' narrows them down)"
	@echo "make lint    ruff and mypy"
	@echo "make format  ruff format"
	@echo "make info    what Vulkan offers on this machine"
	@echo "make clean   remove .venv and caches of the checks"

setup:
	@python=$$(tools/python.sh) && "$$python" tools/setup_env.py

setup-dev:
	@python=$$(tools/python.sh) && "$$python" tools/setup_env.py --dev

demo: setup
	@$(PYTHON_IN_VENV) -m vkinductor generate --prompt "What is the capital of France?" --tokens 24

test: setup-dev
	@$(PYTHON_IN_VENV) -m pytest $(PYTEST_ARGS)

lint: setup-dev
	$(PYTHON_IN_VENV) -m ruff check .
	$(PYTHON_IN_VENV) -m ruff format --check .
	$(PYTHON_IN_VENV) -m mypy

format: setup-dev
	$(PYTHON_IN_VENV) -m ruff format .
	$(PYTHON_IN_VENV) -m ruff check --fix .

info: setup
	@$(PYTHON_IN_VENV) -m vkinductor info

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache build *.egg-info
