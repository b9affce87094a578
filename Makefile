# The one list of commands; README and CI call only these. `make help` lists them.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CACHE  := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/omni-operator
# 3.11 is what the lock was resolved for; 3.12 is tried where there is no 3.11.
PYTHON := $(shell for python in python3.11 python3.12 python3; do \
  "$$python" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null \
  && { command -v "$$python"; break; }; done)
UV     := $(CACHE)/uv-0.13.8/bin/uv
BIN    := .venv/bin
KEY    := $(shell cat requirements/*.txt pyproject.toml 2>/dev/null | sha256sum | cut -c1-16)
# Short benchmarks first.
BENCHES := generation_ahead batching reward_overlap scoring overhead agent_loop weight_transfer fan_out adapter_update fit_models fit_accuracy replica_loss start_up operator_memory operator_create operator_scale operator_fairness real_size example_job
STAMP  := .venv/.ready-$(KEY)
# Written from the models, or checked with `--check`.
generated = PYTHONPATH=operator:. $(BIN)/python -m tools.generated_files $(1)
# Without the advertisement that mkdocs-material prints.
site = env NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
# Without compiled modules each process imports torch, vLLM and verl in twice the time.
unexport PYTHONDONTWRITEBYTECODE
export VERL_PLATFORM ?= $(if $(wildcard /dev/nvidiactl /dev/davinci_manager),,cpu)
# Tests compute with one thread, so that numbers are the same everywhere; a run chooses its threads.
ifneq ($(MAKECMDGOALS),run)
export OMP_NUM_THREADS ?= 1
endif
export HF_HUB_OFFLINE ?= 1

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv with everything, from the locked set

$(UV):
	@[[ -n "$(PYTHON)" ]] || { echo "Python 3.11 or 3.12 is missing: install it (Debian: apt-get install python3.11 python3.11-venv)"; exit 1; }
	@echo "installing uv into $(CACHE)"
	@rm -rf $(CACHE)/uv-0.13.8 && mkdir -p $(CACHE)
	@$(PYTHON) -m venv $(CACHE)/uv-0.13.8
	@$(CACHE)/uv-0.13.8/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt

$(STAMP): | $(UV)
	@command -v cc >/dev/null || { echo "a C compiler is missing: install one (Debian: apt-get install gcc)"; exit 1; }
	@echo "installing the locked environment into .venv (the first time 4 GB to download and 10 GB of disk)"
	@$(PYTHON) -c 'import sys; sys.version_info[:2] == (3, 11) or print("no Python 3.11 here: using", sys.version.split()[0])'
	@[[ -x $(BIN)/python ]] || $(UV) venv --quiet --python "$(PYTHON)" .venv
	@$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements/all.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@rm -f .venv/.ready-* && touch $@

run: setup ## train the example model by reinforcement learning, and write a report
	@$(BIN)/drl run examples/colors-grpo.yaml

# Stages, their order and what runs side by side: tests/suite.
test: setup ## tests that need no root; long files of them take turns after a first run (half an hour on 2 cores)
	@PYTHONPATH=tests $(BIN)/python -m suite test

test-cluster: setup ## end-to-end tests on a local cluster, with training in pods (root; builds images the first time)
	@PYTHONPATH=tests $(BIN)/python -m suite test-cluster

test-all: setup ## make test and make test-cluster, with the builds in the background: what CI runs
	@PYTHONPATH=tests $(BIN)/python -m suite test-all

test-times: setup ## write the durations of the last test runs into docs/contribute/testing.md
	@PYTHONPATH=tests $(BIN)/python -m suite times
	@$(call generated,)

test-fast: setup ## fast tests only
	@PYTHONPATH=tests $(BIN)/python -m suite check --only fast

test-gpu: setup ## the suite for a machine with an NVIDIA device
	@$(BIN)/python -m pytest -q -m gpu

test-npu: setup ## the suite for a machine with an Ascend device (not run there yet)
	@$(BIN)/python -m pytest -q -m npu

check: setup ## format, lint, types, walls, locks, fast tests: before every commit
	@PYTHONPATH=tests $(BIN)/python -m suite check

static: setup ## format, lint, types, walls, locks
	@echo "format and lint" && $(BIN)/ruff format --check -q . && $(BIN)/ruff check -q .
	@echo "types" && nice -n 5 $(BIN)/mypy
	@echo "walls" && PYTHONPATH=operator:. $(BIN)/lint-imports --no-cache >/dev/null || { PYTHONPATH=operator:. $(BIN)/lint-imports --no-cache; exit 1; }
	@echo "locks" && $(BIN)/python requirements/lock.py --check
	@echo "generated files" && $(call generated,--check)
	@echo "docs site" && nice -n 5 $(call site)

docs: setup ## build the docs site into .venv/site, strictly and offline
	@$(call site) && echo "open .venv/site/index.html"
.PHONY: docs

format: setup ## rewrite the code in its format
	@$(BIN)/ruff format -q . && $(BIN)/ruff check -q --fix .

bench: setup ## every figure in the docs; one of them alone: .venv/bin/python benchmarks/NAME.py
	@for name in $(BENCHES); do echo "measuring: benchmarks/$$name.py"; PYTHONPATH=. $(BIN)/python benchmarks/$$name.py; done
	@$(BIN)/python benchmarks/page.py

crds: setup ## write again what is generated: crds/, the chart's README, pages of docs/, jobs of drl init
	@$(call generated,)

pod-schema: setup ## write again the schema of pod templates, from the pinned KubeRay
	@PYTHONPATH=. $(BIN)/python -m e2e.pod_schema

lock: $(UV) ## resolve the locked sets again
	@$(PYTHON) requirements/lock.py --uv $(UV)

cluster: setup ## a Kubernetes on this machine, with KubeRay and nodes that seem to have GPUs and NPUs
	@PYTHONPATH=. $(BIN)/python -m e2e.cluster up
cluster-down: setup ## remove that cluster; nothing of it stays
	@PYTHONPATH=. $(BIN)/python -m e2e.cluster down
.PHONY: cluster cluster-down

demo: setup ## all of it on a Kubernetes on this machine: cluster, operator, a training in pods, its report
	@PYTHONPATH=. $(BIN)/python -m e2e.demo
.PHONY: demo

images: setup ## build the images of operator and training, by Docker or buildah
	@PYTHONPATH=. $(BIN)/python -u -m e2e.images
.PHONY: images

cache: setup ## print what tests keep on the disk outside the tree, by folder
	@PYTHONPATH=. $(BIN)/python -m e2e.cache

clean-cache: setup ## remove all of that
	@PYTHONPATH=. $(BIN)/python -m e2e.cache --clean

clean: ## remove the environment and caches of the tree; keeps runs, and the cache outside
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

release: setup ## VERSION=1.4.0: set the version, write the changelog, build wheel, chart, images and checksums into dist/
	@PYTHONPATH=operator:. $(BIN)/python -m e2e.release $(VERSION) $(if $(IMAGES),--images $(IMAGES))
.PHONY: release

changelog: setup ## what CHANGELOG.md would gain from changelog.d
	@$(BIN)/towncrier build --draft --version next

.PHONY: help setup run crds static changelog test test-cluster test-all test-times test-fast test-gpu test-npu
.PHONY: check format bench lock clean cache clean-cache
