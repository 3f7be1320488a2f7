# manyhands: `make demo` shows it, `make test` checks it. `make help` lists the rest.
SHELL := bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help programs demo test check format bench clean

help: ## List the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(READY): pyproject.toml Makefile
	@echo "==> setting up $(VENV) (only the first time, or when pyproject.toml changed)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "manyhands needs Python 3.11 or later; $(PYTHON) is older. Try: make PYTHON=python3.11 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,bench,math,rag,web,rollout,parquet]'
	@$(MAKE) --no-print-directory programs
	@touch $(READY)

programs: # What is no Python package: the sandbox of programs and the browser
	@missing=""; \
	command -v bwrap >/dev/null || missing="$$missing bubblewrap"; \
	command -v chromium >/dev/null || missing="$$missing chromium"; \
	test -z "$$missing" && exit 0; \
	sudo=; test "$$(id -u)" = 0 || sudo=sudo; \
	if command -v apt-get >/dev/null; then \
		echo "==> installing$$missing"; \
		$$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qq -y --no-install-recommends $$missing >/dev/null; \
	else echo "please install:$$missing"; exit 1; fi

demo: $(READY) ## Run a batch of tasks in parallel and look at it
	@$(BIN)/manyhands demo

test: $(READY) ## Check format, lint and types, then run every test
	@$(MAKE) --no-print-directory check
	@echo "==> tests"
	@MANYHANDS_REQUIRE_ALL=1 $(BIN)/python -m pytest

check: $(READY) ## Check format, lint and types
	@echo "==> format, lint, types"
	@$(BIN)/ruff format --check --quiet . || { echo "run 'make format'"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary

format: $(READY) ## Format the code and sort imports
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix --quiet .

bench: $(READY) ## Measure against peers: one table, JSON and a plot in bench/out (takes minutes; run nothing else)
	@$(BIN)/python -m bench

clean: ## Remove the environment and everything that was generated
	rm -rf $(VENV) build dist bench/out .mypy_cache .ruff_cache .pytest_cache .hypothesis htmlcov .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
