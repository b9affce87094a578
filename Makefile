# The one list of commands; README and CI call only these. `make help` lists them.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CACHE  := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/omni-operator
PYTHON := $(shell command -v python3.11 || command -v python3.12)
UV     := $(CACHE)/uv-0.13.8/bin/uv
BIN    := .venv/bin
KEY    := $(shell cat requirements/*.txt pyproject.toml 2>/dev/null | sha256sum | cut -c1-16)
STAMP  := .venv/.ready-$(KEY)
export VERL_PLATFORM ?= $(if $(wildcard /dev/nvidiactl /dev/davinci_manager),,cpu)
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv with everything, from the locked set

$(UV):
	@[[ -n "$(PYTHON)" ]] || { echo "Python 3.11 or 3.12 is missing: install it (Debian: apt-get install python3.11 python3.11-venv)"; exit 1; }
	@echo "installing uv into $(CACHE)"
	@rm -rf $(CACHE)/uv-0.13.8 && mkdir -p $(CACHE)
	@$(PYTHON) -m venv $(CACHE)/uv-0.13.8
	@$(CACHE)/uv-0.13.8/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt

$(STAMP): $(UV)
	@command -v cc >/dev/null || { echo "a C compiler is missing: install one (Debian: apt-get install gcc)"; exit 1; }
	@echo "installing the locked environment into .venv (4 GB to download the first time, then seconds)"
	@[[ -x $(BIN)/python ]] || $(UV) venv --quiet --python "$(PYTHON)" .venv
	@$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements/all.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@rm -f .venv/.ready-* && touch $@

run: setup ## train the example model by reinforcement learning, and write a report
	@$(BIN)/drl run examples/red-grpo.yaml

test: check ## every test, the ones on the real engine too (about 20 minutes)
	@echo "tests on the real engine"
	@$(BIN)/python -m pytest -q -m 'not gpu' --durations=8

test-fast: setup ## tests without the engine
	@$(BIN)/python -m pytest -q -m 'not engine and not gpu'

test-gpu: setup ## the suite for a machine with an NVIDIA device
	@$(BIN)/python -m pytest -q -m gpu

check: setup ## format, lint, types, walls, fast tests
	@echo "format and lint" && $(BIN)/ruff format --check -q . && $(BIN)/ruff check -q .
	@echo "types" && $(BIN)/mypy
	@echo "walls" && PYTHONPATH=operator:. $(BIN)/lint-imports --no-cache >/dev/null || { PYTHONPATH=operator:. $(BIN)/lint-imports --no-cache; exit 1; }
	@echo "locks" && $(BIN)/python requirements/lock.py --check
	@$(BIN)/python -m pytest -q -m 'not engine and not gpu'

format: setup ## rewrite the code in its format
	@$(BIN)/ruff format -q . && $(BIN)/ruff check -q --fix .

bench: setup ## every figure in the docs
	@$(BIN)/python benchmarks/main_job.py

lock: $(UV) ## resolve the locked sets again
	@$(PYTHON) requirements/lock.py --uv $(UV)

clean: ## remove what the commands made here (not the cache outside)
	@rm -rf .venv runs .mypy_cache .ruff_cache .pytest_cache .hypothesis

.PHONY: help setup run test test-fast test-gpu check format bench lock clean
