# Everything needs a Python 3.12 to 3.14; .ci/find-python looks for one, .ci/env builds .venv once.
# Name one yourself with: make PYTHON=/path/to/python3.12 test

# One BLAS thread to each process: chains and test workers already fill the cores.
export OMP_NUM_THREADS = 1
export OPENBLAS_NUM_THREADS = 1
export MKL_NUM_THREADS = 1
export NUMEXPR_NUM_THREADS = 1
export VECLIB_MAXIMUM_THREADS = 1

BIN = .venv/bin
# Test processes, and more arguments for pytest: make test JOBS=4 ARGS="-k poisson"
JOBS = 2
ARGS ?=
# A file stays in one process: what its tests share is built and compiled once.
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

.PHONY: help demo test test-all test-fast lint format docs bench-check env clean

help:
	@echo "make demo       fit the coal-mining example and draw it (coal_mining.png)"
	@echo "make test       run the tests that are not marked long"
	@echo "make test-all   run all tests"
	@echo "make test-fast  run the tests that are not marked slow"
	@echo "make lint       ruff and mypy"
	@echo "make format     let ruff rewrite what it can"
	@echo "make docs       build the documentation (docs/_build/html)"
	@echo "make bench-check  compare speed with what was committed"
	@echo "make clean      remove .venv and what was built"

env:
	@.ci/env dev

demo: env
	MPLBACKEND=Agg $(BIN)/python -u notebooks/coal_mining.py

test: env
	$(PYTEST) -m "not long" $(ARGS)

test-all: env
	$(PYTEST) $(ARGS)

test-fast: env
	$(PYTEST) -m "not slow and not long" $(ARGS)

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: env
	@.ci/env docs
	$(BIN)/sphinx-build -W -j 8 -b html docs docs/_build/html
	$(BIN)/python docs/check_pages.py

bench-check: env
	$(BIN)/python benchmarks/check.py $(ARGS)

clean:
	rm -rf .venv docs/_build docs/generated docs/notebooks .pytest_cache .mypy_cache .ruff_cache .hypothesis coal_mining.png
