# Two commands are enough: `make demo` and `make test`. Both make .venv first if it is not there.
PYTHON ?= python3
VENV := .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
STAMP := $(VENV)/.installed
MINUTES ?= 3

.PHONY: setup demo test lint types bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "minga needs Python 3.11 or newer, this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[data,dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/minga demo --minutes $(MINUTES)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

test: lint types
	$(BIN)/python -m pytest -n 2 --dist worksteal

bench: setup
	$(BIN)/python -m benchmarks.equivalence --json
	$(BIN)/python -m benchmarks.allreduce --json
	$(BIN)/python -m benchmarks.recovery --json
	$(BIN)/python -m benchmarks.overhead --json

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
