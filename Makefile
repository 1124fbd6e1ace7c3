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
SEEDS ?= 2000
FIRST_SEED ?= 1
WORKERS ?= 5
SECONDS_FOR_TESTS ?= 300
SECONDS_ON_CARD ?= 360

# Each process that a test starts would compile the package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo docs pictures test soak lint style types bench gpu clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "minga needs Python 3.11 or newer, this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing PyTorch and what else minga needs into $(VENV), without further words: this takes minutes."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[data,authority,dashboard,lan,dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/minga demo --minutes $(MINUTES)

# The pages that are made from the code, and the documentation site in site/. Builds without a connection.
docs: setup
	$(BIN)/python -m documentation
	$(BIN)/python -m zensical build --clean --strict

# The pictures of the README, from a demo of this machine and, with chromium, from a run with a dashboard.
pictures: setup
	rm -rf minga-pictures
	$(BIN)/minga demo --minutes $(MINUTES) --out minga-pictures
	cp minga-pictures/terminal.svg docs/demo.svg
	rm -rf minga-pictures
	$(BIN)/python -m tools.pictures docs

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m tools.words

lint: style
	$(BIN)/python -m tools.size  # shown, no limit

types: setup
	$(BIN)/mypy

# More workers than two cores, because many tests wait; types and style are checked beside them.
test: setup
	@$(MAKE) --no-print-directory types style & checks=$$!; \
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal; tests=$$?; \
	wait $$checks || { echo "types or style: errors stand above; make lint types shows them alone" >&2; exit 1; }; \
	exit $$tests

# More seeds and sizes of what `make test` tries, and SEEDS more swarms with random faults, from FIRST_SEED on.
soak: setup
	$(BIN)/python -m pytest -n auto --dist worksteal -m soak
	$(BIN)/python -m pytest -n auto --dist worksteal tests/simulation/test_seeded_faults.py --fault-seeds $(FIRST_SEED):$$(($(FIRST_SEED) + $(SEEDS)))

bench: setup
	$(BIN)/python -m benchmarks.equivalence --json
	$(BIN)/python -m benchmarks.allreduce --json
	$(BIN)/python -m benchmarks.recovery --json
	$(BIN)/python -m benchmarks.overhead --json

# On a machine with a card: all tests that need one, and how close training comes to bare PyTorch, in gpu.json.
gpu: setup
	timeout $(SECONDS_FOR_TESTS) $(BIN)/python -m pytest -m 'cuda and not soak'; tests=$$?; \
	timeout $(SECONDS_ON_CARD) $(BIN)/python -m benchmarks.gpu --json > gpu.json || tests=1; \
	tail -n 1 gpu.json; exit $$tests

clean:
	rm -rf $(VENV) build dist site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
