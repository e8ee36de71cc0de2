# make apex    an Ape-X job on this machine: server, actors, learner, evaluator
# make test    everything that is checked before a change goes in
# Each sets up what it needs; the second time that takes no time. `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

ENV ?= ALE/Breakout-v5
ACTORS ?=
MINUTES ?=
SEED ?=
LOGDIR ?=
# Further options of replay-server apex, e.g. ARGS="--profile cartpole"
ARGS ?=
FUZZ_SECONDS ?= 20
# Of random faults, on each device.
FAULT_SECONDS ?= 60
# Of the simulated machine. The tests run as many, from seed 1 on.
FIRST ?= 1
SEEDS ?= 10000
# Folders of tests at a time. Tests wait for two fifths of their time, so three keep two processors busy. More need more
# memory, and processors for tests that wait for nothing.
JOBS ?= 3

PYTHON ?= $(firstword $(wildcard /usr/bin/python3) python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup
LWIP := build/lwip
# What is installed beside the server and its clients. A replay host needs none of it: make setup EXTRAS=
# `make setup` and `make lwip` keep to what was chosen before; whatever else is made needs everything.
ALL_EXTRAS := rl atari mujoco plots ray lambda http dashboard docs completion bfloat16 dev
ifeq ($(filter-out setup lwip,$(MAKECMDGOALS))$(wildcard $(STAMP)/extras),$(STAMP)/extras)
EXTRAS ?= $(shell cat $(STAMP)/extras)
endif
EXTRAS ?= $(ALL_EXTRAS)
# Further options of pip, e.g. PIP_OPTIONS="--extra-index-url …" for a CPU-only build of torch.
PIP_OPTIONS ?=
comma := ,

NATIVE := $(shell find native -type f \( -name '*.c' -o -name '*.h' -o -name '*.py' -o -name '*.cmake' -o -name CMakeLists.txt \))
# The binding and the server need no rebuild for a change of these.
C_STYLE := $(filter %.c %.h,$(filter-out native/cdef.h,$(NATIVE))) $(wildcard tests/native/*.c tests/native/*.h)

SHELL_SCRIPTS := setup_dpdk.sh $(wildcard native/net/dpdk/setup/*.sh) native/net/lwip/fetch .ci/run .ci/release .ci/system-packages

.PHONY: help setup lwip apex test test-slow test-vm lint format bench fuzz faults simulate reference docs sdist wheel clean FORCE

help:
	@echo "make apex [ENV=ALE/Breakout-v5] [ACTORS=n] [MINUTES=m] [SEED=s] [LOGDIR=dir] [ARGS='--profile …']"
	@echo "make test        lint, C tests under sanitizers, fuzzing for $(FUZZ_SECONDS) s, all tests but the slow ones"
	@echo "make test-slow   the tests marked slow      make test-vm   PCI NICs in a virtual machine"
	@echo "make bench       replay-server bench server, with JSON and a plot in runs/bench"
	@echo "make lint        ruff, pyright, clang-format      make format   rewrites files as lint wants them"
	@echo "make fuzz        FUZZ_SECONDS=600 make fuzz: requests, commands, snapshots"
	@echo "make faults      FAULT_SECONDS=3600 make faults: frames, links and devices that fail, over DPDK"
	@echo "make simulate    SEEDS=10000 make simulate: the append-only file and replicas on machines that fail"
	@echo "make reference   writes docs/reference again, from the code      make docs   builds the website in build/site"
	@echo "make lwip        sets up again what the transport over DPDK is built from"
	@echo "make wheel       builds the wheel and tries it in an empty environment, without a compiler"
	@echo "make setup       what the others begin with       make clean    removes builds and the environment"

# ---- set-up ---------------------------------------------------------------------------------------------------------

setup: $(STAMP)/installed

SYSTEM_PACKAGES = PYTHON=$(PYTHON) .ci/system-packages python3=command:python3 gcc=command:cc libc6-dev=header:stdio.h \
    python3-dev=header:Python.h python3-venv=module:ensurepip \
    -- liblz4-dev=header:lz4.h libzstd-dev=header:zstd.h liblua5.1-0-dev=header:lua5.1/lua.h \
    iproute2=command:ip ethtool=command:ethtool pkg-config=command:pkg-config libdpdk-dev=pkgconfig:libdpdk \
    dpdk=command:dpdk-devbind.py pciutils=command:lspci kmod=command:kmod $(if $(filter dev,$(EXTRAS)),$(TEST_PACKAGES))
TEST_PACKAGES = redis-server=command:redis-server redis-tools=command:redis-benchmark shellcheck=command:shellcheck \
    libhiredis-dev=header:hiredis/hiredis.h libredis-perl=perl:Redis php-cli=command:php php-redis=php:redis \
    chromium=command:chromium

$(STAMP)/system: .ci/system-packages $(STAMP)/extras
	@$(SYSTEM_PACKAGES)
	@mkdir -p $(STAMP) && touch $@

# The TCP stack of the transport over DPDK, from the distribution's source archive. Without it, or without DPDK, the rest is
# built all the same.
$(LWIP)/.fetched: native/net/lwip/fetch | $(STAMP)/system
	@mkdir -p $(LWIP)
	@if ! pkg-config --exists libdpdk 2>/dev/null; then \
	    echo "the transport over DPDK is not built: libdpdk-dev is not there (make lwip, once it is)"; \
	elif ! native/net/lwip/fetch $(LWIP) >/dev/null; then \
	    echo "the transport over DPDK is not built: it needs lwIP's source, see above (make lwip tries again)"; \
	fi
	@touch $@

$(STAMP)/extras: FORCE
	@mkdir -p $(STAMP) && touch -a $@
	@[ "$$(cat $@)" = "$(EXTRAS)" ] || echo "$(EXTRAS)" >$@

# The environment: everything but this project itself. Rebuilt by pip only where pyproject.toml or the constraints changed.
$(STAMP)/environment: $(STAMP)/system $(STAMP)/extras pyproject.toml constraints.txt
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@echo "installing Python packages into $(VENV)$(if $(filter rl,$(EXTRAS)),: some 2.5 GB with torch$(comma) once; it takes minutes and says little)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check 'pip>=24'
	@$(BIN)/python .ci/requirements pyproject.toml $(EXTRAS) > $(STAMP)/requirements.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_OPTIONS) -c constraints.txt -r $(STAMP)/requirements.txt
	@touch $@

# Where F-Stack is, as it was said last: another one is another build.
$(STAMP)/ff_path: $(if $(FF_PATH),FORCE)
	@mkdir -p $(STAMP) && touch -a $@
	@[ "$$(cat $@)" = "$(FF_PATH)" ] || echo "$(FF_PATH)" >$@

# The project, editable: Python files are used where they are; native files are compiled here, never at import.
$(STAMP)/installed: $(STAMP)/environment $(LWIP)/.fetched $(STAMP)/ff_path $(NATIVE)
	@echo "building the native server and installing replay-server (editable)"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

lwip:
	@$(SYSTEM_PACKAGES)
	@rm -f $(LWIP)/.fetched
	@$(MAKE) --no-print-directory setup

# ---- what people type -----------------------------------------------------------------------------------------------

apex: setup
	@exec $(BIN)/replay-server apex --env "$(ENV)" $(if $(ACTORS),--actors $(ACTORS)) $(if $(MINUTES),--minutes $(MINUTES)) \
	    $(if $(SEED),--seed $(SEED)) $(if $(LOGDIR),--logdir "$(LOGDIR)") $(ARGS)

# The longest first; what a folder printed appears when it has ended. With ARGS, one pytest for all, which prints as it goes.
LONGEST := tests/learning tests/transport tests/serverless tests/conformance tests/native tests/protocol
TESTS := $(LONGEST) $(filter-out $(LONGEST) tests/vm,$(patsubst %/,%,$(wildcard tests/[a-z]*/)))
.PHONY: $(TESTS)
# One thread of torch for each test process: more would wait for each other, since the folders share the processors.
PYTEST = FUZZ_SECONDS=$(FUZZ_SECONDS) OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test: setup
ifeq ($(strip $(ARGS)),)
	@echo "lint and $(words $(TESTS)) folders of tests, $(JOBS) at a time: each is silent until it has ended, minutes at first"
	@$(MAKE) --no-print-directory --keep-going --jobs $(JOBS) --output-sync=target lint $(TESTS)
else
	@$(MAKE) --no-print-directory lint
	@$(PYTEST) -m "not slow and not vm" $(ARGS)
endif

$(TESTS):
	@$(PYTEST) -m "not slow and not vm" $@

test-slow: setup
	@$(PYTEST) -m slow $(ARGS)

# PCI NICs in a virtual machine. The first time makes the guest's disk, some 15 minutes; kept in build/vm.
VM_PACKAGES = qemu-system-x86=command:qemu-system-x86_64 qemu-utils=command:qemu-img mmdebstrap=command:mmdebstrap \
    openssh-client=command:ssh e2fsprogs=command:mkfs.ext4 uidmap=command:newuidmap
test-vm: setup
	@.ci/system-packages $(VM_PACKAGES)
	@$(BIN)/python -m pytest -s -m vm tests/vm $(ARGS)

bench: setup
	@mkdir -p runs/bench
	@$(BIN)/replay-server bench server --json runs/bench/server.json --plot runs/bench/server.png $(ARGS)

simulate: setup
	@$(BIN)/cmake -S native -B build/simulation -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DREPLAY_TESTS=ON \
	    > build/simulation.log
	@$(BIN)/cmake --build build/simulation --target test_failing_machine test_failing_network >> build/simulation.log
	@for what in machine network; do \
	    if [ $$what = machine ] && [ -e build/simulation-network-$(FIRST)-$(SEEDS).progress ]; then continue; fi; \
	    build/simulation/test_failing_$$what -first=$(FIRST) -seeds=$(SEEDS) -jobs=$$(nproc) \
	        -progress=$(abspath build)/simulation-$$what-$(FIRST)-$(SEEDS).progress || exit 1; done

fuzz: setup
	@FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest -s tests/native -k fuzz --timeout 0

faults: setup
	@FAULT_SECONDS=$(FAULT_SECONDS) $(BIN)/python -m pytest -s -m slow tests/transport/test_random_faults.py $(ARGS)

reference: setup
	@$(BIN)/python tests/docs/generate.py

docs: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open build/site/index.html"

lint: $(STAMP)/environment
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q . || { echo "not as ruff formats it: run make format" >&2; exit 1; }
	@$(BIN)/clang-format --dry-run -Werror $(C_STYLE)
	@if command -v shellcheck >/dev/null; then shellcheck -x $(SHELL_SCRIPTS); fi
	@$(BIN)/pyright

format: $(STAMP)/environment
	@$(BIN)/ruff check --fix -q . || true
	@$(BIN)/ruff format -q .
	@$(BIN)/clang-format -i $(C_STYLE)

sdist: setup
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -c \
	    "import os; from scikit_build_core.build import build_sdist; os.makedirs('dist', exist_ok=True); print(build_sdist('dist'))"

wheel: setup
	@$(BIN)/python .ci/try_wheel.py

clean:
	rm -rf build dist $(VENV) .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
