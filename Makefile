# Everything works from a bare clone: each target first makes the environment that it needs.
# PYTHON: 3.10 or 3.11 for the full set. CORE_PYTHON: the newest Python from 3.10 on, for the core without TensorFlow;
# OLDEST_PYTHON: the oldest.
# PEERS_PYTHON: 3.11, for the libraries that some views follow and that learners are written with.
# LEROBOT_PYTHON: from 3.12 on, for LeRobot.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# Where this is set, each of the hundreds of interpreters that tests start compiles TensorFlow and all else anew: 9 seconds, not 3.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(shell scripts/find-python 3.11 3.10)
CORE_PYTHON ?= $(shell scripts/find-python 3.13 3.12 3.11 3.10)
OLDEST_PYTHON ?= $(shell scripts/find-python 3.10 3.11 3.12 3.13)
PEERS_PYTHON ?= $(shell scripts/find-python 3.11)
LEROBOT_PYTHON ?= $(shell scripts/find-python 3.12 3.13)
VENV := .venv
CORE_VENV := .venv-core
OLDEST_VENV := .venv-oldest
SHAPE_VENV := .venv-shape
PEERS_VENV := .venv-peers
LEARNERS_VENV := .venv-learners
LEROBOT_VENV := .venv-lerobot
DOCS_VENV := .venv-docs
RUN := $(VENV)/bin/
COMPILED := hatch_build.py rlds2reverb/wire/sample/native.c rlds2reverb/images.c
QUIET := TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=-1
WORKERS ?= 2
# What the pages say and how the code is written: `make shape` runs these, once.
PROSE := $(addprefix tests/packaging/project/test_,docs.py docs_commands.py project.py release.py site.py style.py)
# What others' own code says of ours: as slow as it is, and changed by few changes.
CONFORMANCE := tests/conformance tests/unit/tf_agents
# A worker that a test has ended is not replaced: pytest-xdist 3.8 would wait for ever for the rest of its file.
PYTEST := pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --ignore tests/systems --ignore tests/packaging/wheels --ignore tests/packaging/site --ignore tests/packaging/walkthroughs

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(VENV)/.ready ## Make .venv: the full set, locked

setup-core: $(CORE_VENV)/.ready ## Make .venv-core: no TensorFlow, newest Python and protobuf

setup-oldest: $(OLDEST_VENV)/.ready ## Make .venv-oldest: the oldest Python and dependencies that we allow

setup-peers: $(PEERS_VENV)/.ready ## Make .venv-peers: TorchRL, RLlib, Acme (2.5 GB)

$(VENV)/.ready: requirements/full.txt pyproject.toml $(COMPILED) scripts/make-venv
	scripts/make-venv $(VENV) "$(PYTHON)" requirements/full.txt

$(CORE_VENV)/.ready: requirements/core.txt pyproject.toml $(COMPILED) scripts/make-venv
	scripts/make-venv $(CORE_VENV) "$(CORE_PYTHON)" requirements/core.txt

$(OLDEST_VENV)/.ready: requirements/oldest.txt pyproject.toml $(COMPILED) scripts/make-venv
	scripts/make-venv $(OLDEST_VENV) "$(OLDEST_PYTHON)" requirements/oldest.txt

$(SHAPE_VENV)/.ready: requirements/shape.txt pyproject.toml $(COMPILED) scripts/make-venv
	scripts/make-venv $(SHAPE_VENV) "$(PEERS_PYTHON)" requirements/shape.txt

$(DOCS_VENV)/.ready: requirements/docs.txt pyproject.toml $(COMPILED) scripts/make-venv
	scripts/make-venv $(DOCS_VENV) "$(CORE_PYTHON)" requirements/docs.txt

$(LEARNERS_VENV)/.ready: requirements/learners.txt pyproject.toml $(COMPILED) scripts/make-venv scripts/peers-env
	scripts/make-venv $(LEARNERS_VENV) "$(PEERS_PYTHON)" requirements/learners.txt

$(LEROBOT_VENV)/.ready: requirements/lerobot.txt pyproject.toml $(COMPILED) scripts/make-venv
	scripts/make-venv $(LEROBOT_VENV) "$(LEROBOT_PYTHON)" requirements/lerobot.txt

$(PEERS_VENV)/.ready: requirements/peers.txt pyproject.toml $(COMPILED) requirements/peers.exclude scripts/make-venv scripts/peers-env
	scripts/make-venv $(PEERS_VENV) "$(PEERS_PYTHON)" requirements/peers.txt

setup-learners: $(LEARNERS_VENV)/.ready ## Make .venv-learners: PyTorch, TorchRL, JAX, RLlib; no TensorFlow (2 GB)

setup-lerobot: $(LEROBOT_VENV)/.ready ## Make .venv-lerobot: LeRobot with its policies, on Python 3.12 or later (6 GB)

setup-docs: $(DOCS_VENV)/.ready ## Make .venv-docs: mkdocs-material, for the docs' site

demo: setup ## Fill an embedded server with a shipped dataset and sample from it
	$(QUIET) $(RUN)rlds2reverb demo

test: test-core test-servers ## The tests of the code, each once: the core's without TensorFlow, the service's on a real Reverb; test-conformance has the others

test-core: setup-core ## The core's tests, without TensorFlow, on the newest Python and protobuf
	$(CORE_VENV)/bin/$(PYTEST) -m "not full" $(addprefix --ignore ,$(PROSE)) $(ARGS)

test-servers: setup ## What needs TensorFlow or a real Reverb server: the service, faults, files by TFDS
	$(QUIET) $(RUN)$(PYTEST) -m full --ignore tests/faults/chaos $(addprefix --ignore ,$(CONFORMANCE)) $(ARGS)

test-conformance: setup ## Our items and batches beside those of TF-Agents, TFDS and Reverb's own client, on a real server (8 minutes)
	$(QUIET) $(RUN)$(PYTEST) -m full $(or $(ARGS),$(CONFORMANCE))

conformance: setup ## The observed facts of docs/wire.md on another Reverb: REVERB=0.14.0, a wheel, or a Python that has it
	$(QUIET) RUN=$(RUN) scripts/conformance "$(REVERB)" $(ARGS)

test-walkthroughs: setup ## The tutorials from top to bottom, the learners of examples/, and the script that takes the pictures
	$(QUIET) $(RUN)pytest -q -n $(WORKERS) tests/packaging/walkthroughs $(ARGS)

test-oldest: setup-oldest ## The core's tests on the oldest Python and the oldest dependencies that we allow
	$(OLDEST_VENV)/bin/$(PYTEST) -m "not full" $(addprefix --ignore ,$(PROSE)) $(ARGS)

test-deep: ## Everything at full size, drawn at random; SEED=N draws again, PARTS="core faults" takes these parts
	scripts/test-deep $(PARTS)

test-chaos: setup ## Random kills, cuts, full disks, damaged files, twenty minutes of soak, a month in an hour (95 minutes; CHAOS_SIZE=0.1: a tenth; CHAOS_SEED: draw again)
	$(QUIET) CHAOS_SIZE=$${CHAOS_SIZE:-1} $(RUN)pytest -rP tests/faults/chaos $(ARGS)

test-peers: setup-peers ## Our views beside TorchRL, RLlib and Acme themselves
	$(QUIET) $(PEERS_VENV)/bin/pytest -q tests/systems/peers $(ARGS)

# Ray's threads live as long as their process, and a DataLoader that forks beside them ends in a segmentation fault: so two processes.
test-learners: setup setup-learners ## The learner's client with PyTorch, TorchRL, JAX and RLlib themselves, and the examples
	$(QUIET) RLDS2REVERB_SERVER_PYTHON=$(CURDIR)/$(VENV)/bin/python $(LEARNERS_VENV)/bin/pytest -q tests/systems/learners --ignore-glob="*/test_rllib*" $(ARGS)
	$(QUIET) RLDS2REVERB_SERVER_PYTHON=$(CURDIR)/$(VENV)/bin/python $(LEARNERS_VENV)/bin/pytest -q tests/systems/learners/test_rllib*.py tests/systems/peers/test_rllib.py $(ARGS)

test-lerobot: setup setup-lerobot ## LeRobot itself: it reads what we write, we read what it writes, and its policies train on our batches
	$(QUIET) RLDS2REVERB_SERVER_PYTHON=$(CURDIR)/$(VENV)/bin/python $(LEROBOT_VENV)/bin/pytest -q tests/systems/lerobot $(ARGS)

test-systems: setup-learners ## What we read and write, beside Minari, TorchRL, RLlib and webdataset themselves
	$(LEARNERS_VENV)/bin/pytest -q tests/systems/storage $(ARGS)

test-packages: setup ## Wheel and sdist: what is in them, and they in empty environments on every Python (PACKAGES=dist: those there)
	$(QUIET) $(RUN)pytest -q tests/packaging/wheels $(ARGS)

test-containers: ## Build the image, run the compose services for real; needs root, installs Docker when missing (7 minutes)
	scripts/containers

test-site: setup-docs ## The docs' site in Chromium, wide and narrow: every page, the search, nothing asked of other machines
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/pytest -q tests/packaging/site $(ARGS)

lint: $(SHAPE_VENV)/.ready ## ruff, mypy strict, imports, unused code, workflows, changelog fragments; no TensorFlow
	$(SHAPE_VENV)/bin/ruff check .
	$(SHAPE_VENV)/bin/ruff format --check .
	$(SHAPE_VENV)/bin/mypy
	$(SHAPE_VENV)/bin/lint-imports --no-logo
	$(SHAPE_VENV)/bin/vulture
	$(SHAPE_VENV)/bin/zizmor --offline --quiet --no-progress .github/workflows
	RUN=$(SHAPE_VENV)/bin/ scripts/changelog check
	$(SHAPE_VENV)/bin/python scripts/docs_lines.py

shape: lint ## What a minute can tell: lint, and whether public names, generated docs, links and declared dependencies are up to date
	$(SHAPE_VENV)/bin/python scripts/public_names.py
	$(SHAPE_VENV)/bin/pytest -q -n $(WORKERS) -m "not full" $(PROSE)

format: $(SHAPE_VENV)/.ready ## Rewrite the code in the agreed format
	$(SHAPE_VENV)/bin/ruff check --fix .
	$(SHAPE_VENV)/bin/ruff format .

hooks: setup ## Have git run the linters before each commit
	$(RUN)pre-commit install

changelog: setup ## Show what the fragments of changelog.d say; VERSION=...: move them into CHANGELOG.md, as that release
	RUN=$(RUN) scripts/changelog $(VERSION)

release: setup ## Prepare the release VERSION: its number wherever it stands, and the changelog
	$(RUN)python scripts/release.py prepare "$(VERSION)"

release-check: setup ## Tell all that stands against a release of what is committed, then write dist/
	scripts/release-check

bench: setup ## The full benchmarks behind docs/benchmarks.md (about 25 minutes)
	$(QUIET) $(RUN)python -m benchmarks all

bench-short: setup ## Short benchmarks (12 minutes; ARGS="views sampling": these); fails when a ratio collapses
	$(QUIET) $(RUN)python -m benchmarks $(or $(ARGS),all) --short

bench-scale: setup ## What docs/capacity.md has: costs of workers, growth of servers, plans (ARGS=--short: a minute or two)
	$(QUIET) $(RUN)python -m benchmarks scale scale_curves $(ARGS)

docs: setup ## Regenerate the generated parts of docs/, and what the notebook shows
	$(QUIET) $(RUN)python scripts/generate_docs.py
	$(RUN)python scripts/public_names.py --write
	$(QUIET) $(RUN)python scripts/run_notebook.py examples/quickstart.ipynb

pictures: setup ## Take the docs' pictures of pages and of top anew, of a staged scene in Chromium
	$(QUIET) $(RUN)python scripts/take_pictures.py

docs-site: setup-docs ## The documentation as a site, in site/: built strictly, needs no network to build or to read
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --quiet
	@echo "site/index.html; with search: python3 -m http.server --bind 127.0.0.1 --directory site"

lock: setup ## Pin everything anew
	scripts/lock

clean: ## Remove what the targets made
	rm -rf .benchmarks site $(VENV) $(CORE_VENV) $(OLDEST_VENV) $(PEERS_VENV) $(LEARNERS_VENV) $(LEROBOT_VENV) $(DOCS_VENV) $(SHAPE_VENV) .import_linter_cache .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: help setup setup-core setup-oldest setup-peers setup-learners setup-lerobot setup-docs demo test test-core test-servers test-conformance conformance test-walkthroughs test-oldest test-deep test-chaos test-peers test-learners test-lerobot test-systems test-containers test-site test-packages lint shape format hooks changelog release release-check bench bench-short bench-scale docs pictures docs-site lock clean
