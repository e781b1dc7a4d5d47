# Two commands: `make train` and `make test`. Each sets up what it needs first; a second call installs nothing.
PYTHON ?= python3
VENV   := .venv
AUDIT  := .venv-audit
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --constraint constraints.txt
# one worker more than cores: many tests wait for processes that they have started
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 ))) --dist loadfile
ARGS   ?=

.PHONY: help train test test-all lint types unit unit-all release audit-dependencies clean
help:
	@echo "make train   train a private model on the embedded digits (ARGS='--epsilon 2' passes flags on)"
	@echo "make test    ruff, mypy --strict, doctests and pytest: every feature, the quick cases"
	@echo "make test-all  make test, and all cases, kills, browsers, releases and blocks of the docs: what CI runs"
	@echo "make release build the wheel and the sdist of this version into dist/ (make test installs and tries them)"
	@echo "make audit-dependencies   look the pinned versions up in a database of known vulnerabilities (needs the network)"
	@echo "make clean   remove the environment and caches"

$(READY): pyproject.toml papers/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "adadpigu needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "First call: making $(VENV) and installing the package (one to three minutes, once)."
	@$(PYTHON) -m venv $(VENV)
	@echo "  1/2 PyTorch" && $(PIP) torch
	@echo "  2/2 adadpigu and its tools" && $(PIP) --editable '.[dev]' --editable ./papers
	@touch $@

train: $(READY)
	@$(BIN)/adadpigu train $(ARGS)

test: lint types unit

test-all: lint types unit-all

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy --num-workers auto

unit: $(READY)
	$(PYTEST) -m "not slow" $(ARGS)

unit-all: $(READY)
	$(PYTEST) -m "not slow" --cov --cov-report= $(ARGS)
	@echo "coverage by these, without what other processes run:" && $(BIN)/coverage report --skip-covered --sort=cover | sed -n '1,12p;/^TOTAL/p'
	$(PYTEST) -m slow $(ARGS)

release: $(READY)
	@$(BIN)/python .ci/release.py dist

# pip-audit has an environment of its own, unpinned: the newest knows most. Exit 1: vulnerable, 2: not looked up (.ci/audit_dependencies.py).
audit-dependencies:
	@test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && $(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check --no-input pip-audit; } 2>/dev/null || { echo "pip-audit cannot be installed: nothing was looked up" >&2; exit 2; }
	@$(AUDIT)/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --progress-spinner off --format json 2>/dev/null | $(PYTHON) .ci/audit_dependencies.py constraints.txt

clean:
	rm -rf $(VENV) $(AUDIT) .mypy_cache .ruff_cache .pytest_cache .hypothesis
