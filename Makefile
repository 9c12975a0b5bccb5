# Everything works from a bare clone: each target first makes the environment that it needs.
# PYTHON: 3.10 or 3.11 for the full set. CORE_PYTHON: the newest Python from 3.10 on, for the core without TensorFlow.
# PEERS_PYTHON: 3.11, for the libraries that some views follow.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell scripts/find-python 3.11 3.10)
CORE_PYTHON ?= $(shell scripts/find-python 3.13 3.12 3.11 3.10)
PEERS_PYTHON ?= $(shell scripts/find-python 3.11)
VENV := .venv
CORE_VENV := .venv-core
PEERS_VENV := .venv-peers
RUN := $(VENV)/bin/
QUIET := TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=-1
WORKERS ?= 2

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(VENV)/.ready ## Make .venv: the full set, locked

setup-core: $(CORE_VENV)/.ready ## Make .venv-core: no TensorFlow, newest Python and protobuf

setup-peers: $(PEERS_VENV)/.ready ## Make .venv-peers: TorchRL, RLlib, Acme (2.5 GB)

$(VENV)/.ready: requirements/full.txt pyproject.toml scripts/make-venv
	scripts/make-venv $(VENV) "$(PYTHON)" requirements/full.txt

$(CORE_VENV)/.ready: requirements/core.txt pyproject.toml scripts/make-venv
	scripts/make-venv $(CORE_VENV) "$(CORE_PYTHON)" requirements/core.txt

$(PEERS_VENV)/.ready: requirements/peers.txt pyproject.toml requirements/peers.exclude scripts/make-venv scripts/peers-env
	scripts/make-venv $(PEERS_VENV) "$(PEERS_PYTHON)" requirements/peers.txt

demo: setup ## Fill an embedded server with a shipped dataset and sample from it
	$(QUIET) $(RUN)rlds2reverb demo

test: test-fast test-core test-servers ## All tests

test-fast: setup ## Unit and property tests, no server
	$(QUIET) $(RUN)pytest -q -n $(WORKERS) --dist loadfile --ignore tests/conformance --ignore tests/faults --ignore tests/server --ignore tests/security --ignore tests/tf --ignore tests/peers $(ARGS)

test-core: setup-core ## The core's tests without TensorFlow, on the newest Python and protobuf
	$(CORE_VENV)/bin/pytest -q -n $(WORKERS) --dist loadfile --ignore tests/peers $(ARGS)

test-servers: setup ## Conformance and fault tests on real servers
	$(QUIET) $(RUN)pytest -q -n $(WORKERS) --dist loadfile tests/tf tests/conformance tests/server tests/security tests/faults $(ARGS)

test-peers: setup-peers ## Our views beside TorchRL, RLlib and Acme themselves
	$(QUIET) $(PEERS_VENV)/bin/pytest -q tests/peers $(ARGS)

test-containers: ## Build the image, run the compose services for real; needs root, installs Docker when missing (5 minutes)
	scripts/containers

lint: setup ## ruff, and mypy strict on our packages
	$(RUN)ruff check .
	$(RUN)ruff format --check .
	$(RUN)mypy

format: setup ## Rewrite the code in the agreed format
	$(RUN)ruff check --fix .
	$(RUN)ruff format .

bench: setup ## The full benchmarks behind docs/benchmarks.md (about 25 minutes)
	$(QUIET) $(RUN)python -m benchmarks all

bench-short: setup ## Short benchmarks; fails when a ratio collapses
	$(QUIET) $(RUN)python -m benchmarks all --short

docs: setup ## Regenerate the generated parts of docs/
	$(QUIET) $(RUN)python scripts/generate_docs.py

lock: setup ## Pin everything anew
	scripts/lock

clean: ## Remove what the targets made
	rm -rf $(VENV) $(CORE_VENV) $(PEERS_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: help setup setup-core setup-peers demo test test-fast test-core test-servers test-peers test-containers lint format bench bench-short docs lock clean
