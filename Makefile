# paragent: `make demo` shows it, `make test` checks it. `make help` lists the rest.
SHELL := bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LIGHT := $(VENV)/.light
READY := $(VENV)/.ready
PROGRAMS := $(VENV)/.programs
MACHINES := $(VENV)/.machines
IMAGES := $(VENV)/.images
SYSTEM := $(VENV)/.system
# Programs of a desktop on this host, each with the Debian package that has it.
DESKTOP := Xvfb=xvfb openbox=openbox dbus-daemon=dbus-daemon hsetroot=hsetroot tint2=tint2 thunar=thunar mousepad=mousepad \
	lxterminal=lxterminal galculator=galculator gsettings=libglib2.0-bin xclip=xclip

pip := $(BIN)/python -m pip install --quiet --disable-pip-version-check -e

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench osworld-parity clean

help: ## List the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

# The demo needs no Ray and no Spark, which are most of the weight of all the others.
$(LIGHT): pyproject.toml Makefile
	@echo "==> setting up $(VENV) (only the first time, or when pyproject.toml changed)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "paragent needs Python 3.11 or later; $(PYTHON) is older. Try: make PYTHON=python3.11 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(pip) '.[math,rag,web,osworld,rollout,qemu]'
	@touch $@

$(READY): $(LIGHT)
	@echo "==> adding Ray, Spark and what checks, tests and benchmarks need"
	@$(pip) '.[dev,bench,ray,spark,math,rag,web,osworld,rollout,parquet]'
	@touch $@

# What is no Python package. The demo needs the sandbox of programs, the browser and a desktop; tests and benchmarks also Java
# for Spark, iproute2 for hosts in network namespaces, openssl for certificates and ffmpeg for films. Machines are QEMU's, and
# their images come from apt's lists (asking for util-linux, which is there, updates them). Where there is no apt-get or no right to use it, what needs a
# program says so itself.
install = if test -n "$$missing"; then \
		echo "==> installing$$missing"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		{ $$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends $$missing; } \
			>$(VENV)/system.log 2>&1 || { echo "could not install$$missing (see $(VENV)/system.log); please do it by hand"; exit 0; }; \
	fi; \
	touch $@

$(PROGRAMS): Makefile | $(LIGHT)
	@missing=""; \
	command -v bwrap >/dev/null || missing="$$missing bubblewrap"; \
	command -v chromium >/dev/null || missing="$$missing chromium"; \
	for pair in $(DESKTOP); do command -v "$${pair%%=*}" >/dev/null || missing="$$missing $${pair##*=}"; done; \
	test -x /usr/libexec/at-spi-bus-launcher || missing="$$missing at-spi2-core"; \
	$(install)

$(SYSTEM): Makefile | $(LIGHT)
	@missing=""; \
	command -v java >/dev/null || test -x "$$JAVA_HOME/bin/java" || missing="$$missing openjdk-17-jre-headless"; \
	command -v ip >/dev/null || missing="$$missing iproute2"; \
	command -v openssl >/dev/null || missing="$$missing openssl"; \
	command -v ffmpeg >/dev/null || missing="$$missing ffmpeg"; \
	$(install)

$(MACHINES): Makefile | $(LIGHT)
	@missing=""; \
	command -v qemu-system-x86_64 >/dev/null || missing="$$missing qemu-system-x86"; \
	command -v qemu-img >/dev/null || missing="$$missing qemu-utils"; \
	command -v slirp4netns >/dev/null || missing="$$missing slirp4netns"; \
	command -v mmdebstrap >/dev/null || missing="$$missing mmdebstrap"; \
	PATH="$$PATH:/usr/sbin:/sbin" command -v mke2fs >/dev/null || missing="$$missing e2fsprogs"; \
	apt-cache show linux-image-cloud-amd64 linux-image-amd64 busybox-static >/dev/null 2>&1 || missing="$$missing util-linux"; \
	$(install)

# A desktop to clone: its image, and its state after a boot. Nothing happens if both are there and nothing has changed.
$(IMAGES): $(shell find src/paragent/machines src/paragent/guest -name '*.py') Makefile | $(MACHINES)
	@echo "==> building the desktop that machines are cloned from (some minutes, the first time)"
	@if $(BIN)/paragent vm build desktop --freeze; then touch $@; else echo "no QEMU desktop here; those of this host are used"; fi

demo: $(LIGHT) $(PROGRAMS) $(IMAGES) ## Run tasks, benchmarks and desktops in parallel and look at them
	@$(BIN)/paragent demo

# Hundreds of tests kill processes, nodes and machines of other people's systems. One that fails is tried once more, and the
# first failure is shown at the end, so that it is mended and not forgotten.
test: $(READY) $(PROGRAMS) $(SYSTEM) $(IMAGES) ## Check format, lint and types, then run every test
	@$(MAKE) --no-print-directory check
	@echo "==> tests"
	@PARAGENT_REQUIRE_ALL=1 $(BIN)/python -m pytest --reruns 1

check: $(READY) ## Check format, lint and types
	@echo "==> format, lint, types"
	@$(BIN)/ruff format --check --quiet . || { echo "run 'make format'"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary

format: $(READY) ## Format the code and sort imports
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix --quiet .

bench: $(READY) $(PROGRAMS) $(SYSTEM) $(IMAGES) ## Measure against peers: one table, JSON and a plot in bench/out (takes minutes; run nothing else)
	@$(BIN)/python -m bench

osworld-parity: $(READY) $(SYSTEM) ## Compare OSWorld's metrics with OSWorld's own package (installs it beside ours; takes minutes)
	@$(BIN)/python -m bench.osworld_parity

clean: ## Remove the environment and everything that was generated
	rm -rf $(VENV) build dist bench/out .mypy_cache .ruff_cache .pytest_cache .hypothesis htmlcov .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
