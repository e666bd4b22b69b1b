# Needs make and Python 3.10 or newer with venv (on Debian the package python3-venv); everything else goes into .venv.
# A stamp file keeps a second call from installing again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt
OLDEST := torch==2.6.0 transformers==5.18.0 accelerate==1.7.0 datasets==4.0.0 sentence-transformers==6.2.0

.PHONY: demo test quick-tests test-long test-gpu oldest docs lint format clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.demo  ## train with four losses briefly, and see what they do
	$(BIN)/python examples/demo.py

test: $(VENV)/.dev  ## lint and types beside doctests and tests, these in two processes of one thread each
	$(MAKE) --jobs 2 --no-print-directory lint quick-tests

quick-tests: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-long: $(VENV)/.dev  ## kills and resumes, several processes, encoder families, all variants of each loss
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m long

test-gpu: $(VENV)/.dev  ## every loss on a GPU, in each precision; where there is none, it says so and does nothing
	$(BIN)/python -m tests.gpu

oldest: $(VENV)/.dev  ## the quick tests under the oldest libraries that pyproject.toml allows; leaves these in .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet $(OLDEST)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -W default

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Not --quiet, which hides the warnings that --strict counts.
docs: $(VENV)/.docs $(VENV)/.dev  ## the pages, in site/; a dead link, an unknown option or a figure without a result is an error
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/test_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(BIN)/python:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 10) and 'Python 3.10 or newer is needed: make PYTHON=python3.12')"
	test ! -e $(VENV) || old=1; $(PYTHON) -m venv $(VENV) || { test "$$old" || rm -rf $(VENV); exit 1; }

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[demo]"
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[demo,dev]"
	touch $@ $(VENV)/.demo

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis
