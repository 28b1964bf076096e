# Every target sets up what it needs: a Python of 3.11 or later, pip and make are enough.

PYTHON ?= python3
WORKERS ?= 3
SOAK_MINUTES ?= 10

VENV := .venv
BENCH_VENV := .venv-bench
BIN := $(VENV)/bin

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo inspect inspector test browser-test soak check lint types layers bench clean

help:
	@echo "make demo    kill agents in their turns, resume in a new process, compare: under a minute"
	@echo "make inspect open the inspector on a store with twenty runs of every kind"
	@echo "make test    run the tests; those of the inspector in a browser if chromium is installed"
	@echo "make soak    kill runs for $(SOAK_MINUTES) minutes with random seeds; kill and freeze hosts with 200 runs,"
	@echo "             a minute for each store; then run the tests with every seed, point and store"
	@echo "make check   all that has to pass before a commit: lint, format, types, layers, tests"
	@echo "make bench   compare with other libraries, in an environment of its own, and write bench/RESULTS.md;"
	@echo "             ARGS='--only A,H' measures these lines alone, ARGS=--quick a little of everything"
	@echo "make inspector     build the inspector's page again, with Node; the result is part of the package"
	@echo "make browser-test  install Debian's chromium and run the tests of the inspector in it"
	@echo "make clean   remove all that make has made"
	@echo
	@echo "PYTHON=python3.12 chooses the interpreter, WORKERS=4 the number of test processes,"
	@echo "SOAK_MINUTES=60 how long a soak takes; ARGS='--seed 7' repeats what a seed has found,"
	@echo "STORM='--seed 7' what one has found among the hosts."

demo: $(VENV)/.demo
	@$(BIN)/python examples/demo.py

inspect: $(VENV)/.test
	@rm -rf build/inspected.db*; mkdir -p build
	@$(BIN)/python examples/inspected.py build/inspected.db
	@$(BIN)/perdure inspect -s build/inspected.db

# The same sources give the same bytes: versions come from the lock file.
inspector:
	cd inspector && npm ci --no-audit --no-fund && npm run build

test: $(VENV)/.test $(if $(shell command -v chromium),$(VENV)/.browser)
	$(BIN)/python -m pytest -n $(WORKERS)

browser-test: $(VENV)/.browser
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; }
	$(BIN)/python -m pytest tests/inspector

soak: $(VENV)/.test
	$(BIN)/python -m tests.crash.errand --minutes $(SOAK_MINUTES) --kills 20 --rounds 1 --races 10 $(ARGS)
	$(BIN)/python -m tests.hosting.chaos --store sqlite --hosts 2,3 --runs 200 --seconds 60 $(STORM)
	$(BIN)/python -m tests.hosting.chaos --store postgres --hosts 2,3 --runs 200 --seconds 60 $(STORM)
	PERDURE_SOAK=1 $(BIN)/python -m pytest -n $(WORKERS) --timeout 7200

check: lint types layers test

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.dev
	$(BIN)/basedpyright

layers: $(VENV)/.dev
	$(BIN)/lint-imports --no-logo

bench: $(BENCH_VENV)/.bench
	@$(BENCH_VENV)/bin/python -m bench $(ARGS)

clean:
	rm -rf $(VENV) $(BENCH_VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests examples bench -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# A stamp says that its extra is installed as pyproject.toml now asks for it. The larger extras hold the smaller.

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@$(call install,$(VENV),demo)
	@touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	@$(call install,$(VENV),test)
	@touch $(VENV)/.demo $@

$(VENV)/.browser: $(VENV)/.test
	@$(call install,$(VENV),browser)
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@$(call install,$(VENV),dev)
	@touch $(VENV)/.demo $(VENV)/.test $@

$(BENCH_VENV)/.bench: pyproject.toml | $(BENCH_VENV)/bin/python
	@$(call install,$(BENCH_VENV),bench)
	@touch $@

# Debian ships Python without ensurepip; there the environment gets its pip from the pip outside.
%/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "perdure needs Python 3.11 or later; name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $* >/dev/null 2>&1 || { \
		$(PYTHON) -m venv --clear --without-pip $* && \
		$(PYTHON) -m pip --python $@ install --quiet pip; \
	}

define install
echo "installing perdure[$(2)] into $(1)" && $(1)/bin/python -m pip install --quiet --editable '.[$(2)]'
endef
