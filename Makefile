# `make demo` and `make test` need Python, make and git, and set up everything else themselves.
# A second call is quick: each step of the set-up leaves a stamp in its environment.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test proof lint format test-core test-nemo test-mounts test-matrix test-pythons test-one-nemo docs pictures slurm-shell clean

# Variables to set on the command line, as in `make test-nemo VENV=.venv-2.7.3 NEMO_VERSION=2.7.3`.
VENV ?= .venv
TORCH_VERSION ?= 2.13.0
NEMO_VERSION ?= 3.0.0
OTHER_PYTHONS ?= 3.10 3.12 3.13
# Pairs NEMO:PYTHON beside that of `make test`.
MATRIX ?= 3.0.0:3.10 3.0.0:3.12 3.0.0:3.13 2.7.3:3.11 2.4.1:3.11
MATRIX_TESTS ?= $(addprefix tests/nemo/test_,activation.py configuration.py placement.py resume_chain.py \
	steering.py stock_stays_stock.py)
MOUNTS ?= ext4 xfs btrfs tmpfs overlay
CORE_TESTS ?= tests/test_*.py $(addprefix tests/,concurrency crash hostile launchers log_reading model watch)
PYTEST_ARGS ?=
WORKERS ?= auto

# $(call find_python,VERSION): shell code that prints an interpreter of that version. Each candidate is started, since
# pyenv puts names on the PATH that only say that the version is not selected.
find_python = { for candidate in python$(1) "$$(pyenv root 2>/dev/null || true)"/versions/$(1).*/bin/python; do \
	if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' \
	$(1) 2>/dev/null; then echo "$$candidate"; break; fi; done; }

# 3.11 first: torch and NeMo have wheels for it everywhere.
ifndef PYTHON
PYTHON := $(shell $(call find_python,3.11))
ifeq ($(PYTHON),)
PYTHON := python3
endif
endif

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
pip_install = $(1)/bin/python -m pip install -qq

# $(call run_pytest,ENVIRONMENT): its programs come first on the path, so that tests find the installed commands.
run_pytest = PATH="$(abspath $(1))/bin:$$PATH" $(1)/bin/pytest $(PYTEST_ARGS)

# An idle worker takes tests from the other, since some of them take minutes. The tests without NeMo wait a good part of
# their time for what they start, so that there may be two of them for each processor.
in_parallel = -n $(WORKERS) --dist worksteal
in_parallel_without_nemo = -n $(if $(filter auto,$(WORKERS)),$$((2 * $$(getconf _NPROCESSORS_ONLN))),$(WORKERS)) \
	--dist worksteal

help:
	@echo "make demo          train a small model three times under the immutable layout, and show what is on disk"
	@echo "make test          lint, test-core, test-nemo and test-pythons"
	@echo "make proof         the long tests of the promises: crashes, races, mounts, and what stock NeMo does there"
	@echo "make lint          ruff and mypy"
	@echo "make format        let ruff format the code"
	@echo "make test-core     the tests that need no NeMo"
	@echo "make test-nemo     the tests that need NeMo and torch (NEMO_VERSION=$(NEMO_VERSION))"
	@echo "make test-matrix   the tests of what touches NeMo's own code, with other pairs NEMO:PYTHON ($(MATRIX))"
	@echo "make test-mounts   the tests of the library, as root, on real file systems ($(MOUNTS))"
	@echo "make test-pythons  the tests that need no NeMo, with Python $(OTHER_PYTHONS)"
	@echo "make docs          build the site of the documentation into site/, and look at it in a browser"
	@echo "make pictures      make the pictures of the documentation again, from trainings that it starts"
	@echo "make slurm-shell   a shell with a two-node Slurm on this machine, which ends with it"
	@echo "make clean         remove the environments and everything built"
	@echo
	@echo "PYTEST_ARGS='-k latest -x' is passed on to pytest; WORKERS=$(WORKERS) is how many tests run at a time."

demo: $(VENV)/.project
	PATH="$(abspath $(VENV))/bin:$$PATH" $(VENV)/bin/immutable-logs demo
	@echo "To have immutable-logs in this shell:  . $(VENV)/bin/activate"

test: lint test-core test-nemo test-pythons

lint: $(VENV)/.project
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/.project
	$(VENV)/bin/ruff check --fix --exit-zero .
	$(VENV)/bin/ruff format .

test-core: $(VENV)/.project
	$(call run_pytest,$(VENV)) $(in_parallel_without_nemo) --ignore=tests/nemo tests

# The launchers by themselves: each test starts several processes that import NeMo, and takes the processors from others.
test-nemo: $(VENV)/.project
	$(call run_pytest,$(VENV)) $(in_parallel) --ignore=tests/nemo/launchers tests/nemo
	$(call run_pytest,$(VENV)) $(in_parallel) tests/nemo/launchers

# As root it mounts file systems on loop devices; what cannot be mounted is named at the end, as a skipped test.
proof: $(VENV)/.project
	$(call run_pytest,$(VENV)) $(in_parallel) -m proof tests

# The tests of the library on real file systems, with all that they write; as root. SSHFS and exFAT have too little for
# most of them: what holds there is tried by tests/mounts/test_core_on_mounts.py, a part of `make proof`.
test-mounts: $(VENV)/.project
	@for kind in $(MOUNTS); do \
		scratch="$$(mktemp -d)"; mkdir "$$scratch/mount"; \
		echo "The tests of the library on $$kind"; \
		$(VENV)/bin/python tests/mounts/on_mount.py "$$kind" "$$scratch/mount" \
			env PATH="$(abspath $(VENV))/bin:$$PATH" $(VENV)/bin/pytest $(PYTEST_ARGS) $(in_parallel) -p no:cacheprovider \
			--basetemp "$$scratch/mount/tests" $(CORE_TESTS); \
		rm -rf "$$scratch"; \
	done

# What touches NeMo's own code and can differ between its versions; MATRIX_TESTS=tests/nemo runs all tests of it but
# those of the launchers, which are the same whatever the NeMo is. Each pair has an environment of its own.
test-matrix:
	@for pair in $(MATRIX); do \
		nemo=$${pair%:*} version=$${pair#*:}; \
		python="$$($(call find_python,$$version))"; \
		if [ -z "$$python" ]; then echo "No Python $$version on the PATH or among pyenv's versions"; exit 1; fi; \
		echo "nemo_toolkit $$nemo on Python $$version"; \
		$(MAKE) --no-print-directory VENV=.venv-nemo-$$nemo-python-$$version NEMO_VERSION=$$nemo PYTHON="$$python" \
			test-one-nemo; \
	done

test-one-nemo: $(VENV)/.project
	$(call run_pytest,$(VENV)) $(in_parallel) --ignore=tests/nemo/launchers $(MATRIX_TESTS)

docs: .venv-docs/.docs
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet --site-dir site
	$(call run_pytest,.venv-docs) tests/project/test_site.py
	@echo "The site is in site/: open site/index.html, or serve it with python -m http.server --directory site"

pictures: $(VENV)/.project
	PATH="$(abspath $(VENV))/bin:$$PATH" $(VENV)/bin/python docs/pictures/make_pictures.py

slurm-shell: $(VENV)/.project
	PATH="$(abspath $(VENV))/bin:$$PATH" $(VENV)/bin/python tests/slurm/cluster.py

test-pythons:
	@missing=""; \
	for version in $(OTHER_PYTHONS); do \
		if [ -n "$$($(call find_python,$$version))" ]; then \
			$(MAKE) --no-print-directory test-python-$$version; \
		else \
			missing="$$missing $$version"; \
		fi; \
	done; \
	for version in $$missing; do \
		echo "NOT TESTED with Python $$version: no such interpreter on the PATH or among pyenv's versions"; \
	done

# The slow ones try a kill or an error at every step, or a thousand ranks: what they find is not the Python's.
test-python-%: .venv-%/.light
	$(call run_pytest,.venv-$*) $(in_parallel_without_nemo) --ignore=tests/nemo -m "not nemo and not proof and not slow" tests

clean:
	rm -rf .venv .venv-* $(VENV) build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name .git -prune -o -type d -name __pycache__ -exec rm -rf {} +

# The main environment: pip, torch, NeMo, then this project, editable, so that a change of the code needs no
# installation. torch comes first and by itself: NeMo would take whichever version is newest.

$(VENV)/.pip:
	@echo "Creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' || { \
		echo "$(PYTHON) is not a Python from 3.10 to 3.13. HINT: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)
	@$(call pip_install,$(VENV)) --upgrade pip
	@touch $@

$(VENV)/.torch-$(TORCH_VERSION): $(VENV)/.pip
	@echo "Installing torch $(TORCH_VERSION) (once, a few minutes)"
	@rm -f $(VENV)/.torch-*
	@$(call pip_install,$(VENV)) "torch==$(TORCH_VERSION)"
	@touch $@

$(VENV)/.nemo-$(NEMO_VERSION): $(VENV)/.torch-$(TORCH_VERSION)
	@echo "Installing nemo_toolkit $(NEMO_VERSION) (once, a few minutes)"
	@rm -f $(VENV)/.nemo-*
	@$(call pip_install,$(VENV)) "nemo_toolkit[common]==$(NEMO_VERSION)"
	@touch $@

$(VENV)/.project: pyproject.toml $(VENV)/.nemo-$(NEMO_VERSION)
	@echo "Installing immutable-logs and the development tools"
	@$(call pip_install,$(VENV)) --editable '.[dev]'
	@touch $@

# A light environment for each other Python, without NeMo and torch.

.PRECIOUS: .venv-%/.pip .venv-%/.light

.venv-%/.pip:
	@python="$$($(call find_python,$*))"; \
	if [ -z "$$python" ]; then echo "No Python $* on the PATH or among pyenv's versions"; exit 1; fi; \
	echo "Creating .venv-$* with $$python"; \
	"$$python" -m venv --clear .venv-$*
	@$(call pip_install,.venv-$*) --upgrade pip
	@touch $@

.venv-%/.light: pyproject.toml .venv-%/.pip
	@echo "Installing immutable-logs and the development tools in .venv-$*"
	@$(call pip_install,.venv-$*) --editable '.[dev]'
	@touch $@

# The environment that builds the site; none of the others needs what is in it.

.venv-docs/.pip:
	@echo "Creating .venv-docs with $(PYTHON)"
	@$(PYTHON) -m venv --clear .venv-docs
	@$(call pip_install,.venv-docs) --upgrade pip
	@touch $@

.venv-docs/.docs: pyproject.toml .venv-docs/.pip
	@echo "Installing MkDocs"
	@$(call pip_install,.venv-docs) --editable '.[dev,docs]'
	@touch $@
