# From a bare machine: `make demo` (a real model, with and without speculation) and `make test`.
# Everything is installed into .venv, once per change of pyproject.toml. PYTHON=... chooses the interpreter.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.10 python3; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/.installed

# Idle threads of torch spin for milliseconds by default, which is many times slower where other work shares the cores.
export GOMP_SPINCOUNT ?= 20000

.PHONY: demo demo-pair demo-small test check figures clean

demo: $(READY)  ## Qwen2.5-Coder 1.5B with its 0.5B sibling: fetches 1.6 GB the first time
	@$(BIN)/draftproof demo

demo-pair: demo

demo-small: $(READY)  ## SmolLM2-135M: fetches 98 MB the first time
	@$(BIN)/draftproof demo --small

test: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

check: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

figures: $(READY)
	@$(BIN)/python docs/figures/make_figures.py

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "draftproof needs Python 3.10 or later with the venv module: set PYTHON=..."; exit 2; }
	@echo "Installing into .venv with $(PYTHON) (PyTorch included: a few minutes the first time) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache
