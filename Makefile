# make prove: everything from a fresh Debian machine to a certificate. make test: the tests. Both can be run twice.
SHELL := /bin/bash
VENV := .venv
PYTHON ?= python3
RECIPE ?= variables/recipes/debian12-gpu.yml
OUT ?= out
# Of `make recipes`: the recipes (default: all), and whether each image is booted, too: make recipes RECIPES=debian12-gpu BOOT=yes
RECIPES ?=
BOOT ?=
# A newer Packer than Debian's, for every target: make prove PACKER=/opt/packer/packer (its plugins: packer init packer/current)
PACKER ?=
# What the local region does as AWS does, NAME or NAME:SEED (docs/conditions.md): make prove CONDITIONS=aws-like
CONDITIONS ?=
# localregion/host.py names the same packages; tests/localregion/test_host_packages.py compares.
PACKAGES := packer qemu-system-x86 qemu-utils mmdebstrap uidmap e2fsprogs dpkg dpkg-dev apt-utils fakeroot gnupg gpgv rpm createrepo-c \
            openssh-client openssh-server python3-venv shellcheck systemd make git gcc libc6-dev
# What recipes of arm64 need on a host of another architecture: emulators, firmware, a compiler (localregion/architectures.py).
ARM64_PACKAGES := qemu-user-static qemu-system-arm qemu-efi-aarch64 gcc-aarch64-linux-gnu
# What tests of test-all run that set-up does not need: Open MPI between two network namespaces, and a build of kernel modules.
TEST_PACKAGES := openmpi-bin linux-headers-cloud-$(shell dpkg --print-architecture 2>/dev/null || echo amd64)
for_arm64 = $(if $(filter aarch64,$(shell uname -m)),,$(if $(shell grep -ls '^architecture: *arm64' $(1)),$(ARM64_PACKAGES)))
named = $(or $(foreach name,$(1),$(firstword $(wildcard $(name) variables/recipes/$(name).yml))),$(wildcard variables/recipes/*.yml))
# Debian 12's backports have a faster QEMU; "no" takes that of Debian 12 and leaves apt's sources as they are.
BACKPORTS ?= yes
ifneq ($(PACKER),)
override PACKER := $(abspath $(or $(shell command -v $(PACKER)),$(error PACKER=$(PACKER): no such program)))
export PACKER
PACKAGES := $(filter-out packer,$(PACKAGES))
endif
# What the program needs, and what linters and tests need beside it.
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
# Python compiles what it imports, a fifth of what pip would, and keeps it: where it may not, each of a proof's programs
# (they are two dozen) would compile all that it imports again.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL = $(VENV)/bin/python -m pip install -q --no-compile --disable-pip-version-check

.PHONY: help setup packages python venv base-image test test-all test-slow lint unit slow unit-and-slow prove recipes roles real nodes machine faults bench clean
help:
	@echo "make prove   set up this machine (apt packages by root or sudo) and run the main job on the local region"
	@echo "             make prove CONDITIONS=aws-like: the local region throttles, delays and fails as AWS does"
	@echo "make test    linters and tests (no machine is booted);  make test-all   the slow ones too: sshd, Packer, Ansible, packages"
	@echo "make faults  inject faults into the image that make prove built;  make machine   the tests that boot machines"
	@echo "make recipes build each recipe in a sandbox and judge its image's files (root); RECIPES=… some, BOOT=yes boots each, too"
	@echo "make roles   run the roles of each kind of image in its base image's tree, twice (root; no machine is booted)"
	@echo "make real    judge NVIDIA's own toolkit and libraries; install Debian's real NVIDIA driver in a sandbox, and boot it (root, network)"
	@echo "make nodes   compile Kubernetes for the local region (network): EKS images then join a real cluster there (docs/nodes-eks.md)"
	@echo "PACKER=PATH  with any of them: that Packer instead of Debian's 1.6.6 (docs/aws.md)"
	@echo "make setup   only the set-up;  make bench   the benchmarks;  make clean   remove .venv and out/"

setup: packages venv

# Only what is missing is installed, so a second run needs neither root nor the network.
packages:
	@BACKPORTS=$(BACKPORTS) bash localregion/packages.sh $(PACKAGES) $(FURTHER_PACKAGES)

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed (make PYTHON=…)" >&2; exit 2; }

venv: $(DEV_STAMP)
$(DEV_STAMP): pyproject.toml | python
	[ -x $(VENV)/bin/python ] || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[local,dev]'
	@touch $(STAMP) $@
$(STAMP): pyproject.toml | python
	[ -x $(VENV)/bin/python ] || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[local]'
	@touch $@

# Beside pip, by the system's Python. If it fails, it has said why, and gpu-ami makes the image when it needs it.
base-image: | python
	-@$(PYTHON) -m localregion.images.prepare

# What a change is tried with: minutes. test-all has everything that boots no machine, and is what CI runs.
# mypy is one process and takes a minute, so that it runs beside the tests. -k: a wrong line does not keep tests from starting.
test: setup
	@$(MAKE) --no-print-directory -k -j2 lint unit

test-slow: FURTHER_PACKAGES = $(TEST_PACKAGES)
test-slow: setup slow

# LINT=: without the linters, for who has run them before (.ci/run)
LINT ?= lint
test-all: FURTHER_PACKAGES = $(TEST_PACKAGES)
test-all: setup
	@$(MAKE) --no-print-directory -k -j2 $(LINT) unit-and-slow

# packer fmt and validate, ansible-lint (production) and yamllint are tests: tests/packer/test_template.py, tests/roles/test_roles.py
lint:
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy --config-file tests/mypy.ini tests

# A worker begins with neighbours, and takes from another's end when it has no more: what a module shares is made once.
PYTEST := $(VENV)/bin/python -m pytest -n auto --dist worksteal

unit:
	$(PYTEST) -m "not slow and not machine and not sandbox"

SLOWEST := --durations=40 --durations-min=2
# Slow tests mostly wait: for a deadline, a region's clock, a program. Two for each CPU keep it busy.
unit-and-slow slow: export PYTEST_XDIST_AUTO_NUM_WORKERS = $(shell expr 2 \* `nproc`)
unit-and-slow:
	$(PYTEST) -m "not machine and not sandbox and not real" $(SLOWEST)

slow:
	$(PYTEST) -m "slow and not machine and not sandbox and not real" $(SLOWEST)

prove: FURTHER_PACKAGES = $(call for_arm64,$(RECIPE))
prove: packages
	@$(MAKE) --no-print-directory -j2 $(STAMP) base-image
	$(VENV)/bin/gpu-ami prove $(RECIPE) -o $(OUT)/$(notdir $(basename $(RECIPE))) $(if $(CONDITIONS),--conditions $(CONDITIONS))

# Goes on where an earlier run ended: gpu-ami rehearse --help
recipes: FURTHER_PACKAGES = $(call for_arm64,$(call named,$(RECIPES)))
recipes: packages
	@$(MAKE) --no-print-directory -j2 $(STAMP) base-image
	$(VENV)/bin/gpu-ami rehearse $(RECIPES) -o $(OUT)/rehearsals $(if $(filter yes,$(BOOT)),--boot)

faults: packages $(STAMP)
	$(VENV)/bin/gpu-ami faults $(OUT)/$(notdir $(basename $(RECIPE))) --together

roles: setup
	$(VENV)/bin/python -m pytest -m "sandbox and not real" -s

real: setup
	$(VENV)/bin/python -m pytest -m real -s tests/originals tests/roles

# Kept by version in GPU_AMI_HOME; an interrupted run goes on where it ended. KUBERNETES=1.35: that version alone
KUBERNETES ?=
nodes: $(STAMP)
	$(VENV)/bin/python -m localregion.kubernetes $(KUBERNETES)

machine: setup
	$(VENV)/bin/python -m pytest -m machine

bench: setup
	for bench in bench/bench_*.py; do $(VENV)/bin/python $$bench || exit; done

clean:
	rm -rf $(VENV) $(OUT) .mypy_cache .ruff_cache .pytest_cache .ansible .hypothesis
