# Each target sets up what it needs in .venv. Python 3.11 or newer is the only thing that has to be there.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install demo serve chromium prometheus systemd bytecode test test-fast test-system lint docs bench preemptions mutants chaos soak clean

help:
	@echo "make install   set up .venv"
	@echo "make demo      tune a real model under a real budget, and show the best configuration and the bill"
	@echo "make serve     start the service on http://127.0.0.1:8000"
	@echo "make test      run all tests; make test-fast: those that need no cluster; test-system: those that do"
	@echo "make mutants   mistakes planted in the ledger and the decisions, each of which a test has to notice"
	@echo "make lint      ruff, mypy, import-linter"
	@echo "make docs      docs/reference anew, from the code"
	@echo "make bench     the benchmarks of benchmarks/README.md"
	@echo "make preemptions  machines taken away from a running trial, twenty of each kind, how long it took to go on, and that it changed nothing"
	@echo "make chaos     jobs under random kills, for ten minutes; make soak: a long run of many small jobs"

# The stamp is renewed when the pins or the project's metadata change.
$(VENV)/.installed: constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed: install it (Debian, Ubuntu: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "Python's venv module is missing: install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,s3]"
	@touch $@

install: $(VENV)/.installed

demo: install
	@$(BIN)/tuner demo

serve: install
	@$(BIN)/tuner serve

WITHOUT_A_SERVICE := not system and not browser

# The page is tested in a real browser.
chromium:
	@command -v chromium chromium-browser google-chrome google-chrome-stable >/dev/null || { \
	  echo "Chromium is missing, which the tests of the page need: install it (Debian: apt install chromium)" >&2; exit 1; }

# The rules and the scraping of /metrics are tested with the real one.
prometheus:
	@command -v prometheus >/dev/null && command -v promtool >/dev/null || { \
	  echo "Prometheus is missing, which the tests of its rules need: install it (Debian: apt install prometheus)" >&2; exit 1; }

# Units are read by systemd's own program.
systemd:
	@command -v systemd-analyze >/dev/null || { \
	  echo "systemd-analyze is missing, which the tests of deploy/systemd need: install it (Debian: apt install systemd)" >&2; exit 1; }

# Where Python is told to write no bytecode, each process of a test would compile what it imports.
bytecode: install
	@$(BIN)/python -m compileall -q tuner trainables

# Tests of a service wait for processes more than they reckon: those without one take what they leave of the processors, by being nice.
test: bytecode chromium prometheus systemd
	@$(MAKE) --no-print-directory -j 2 WORKERS=2 NICE="nice -n 15" test-fast test-system

WORKERS ?= 3
test-fast: bytecode prometheus systemd
	$(NICE) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "$(WITHOUT_A_SERVICE)"

test-system: bytecode chromium prometheus
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "(system or browser) and not soak"

mutants: install
	$(BIN)/python -m tools.mutants

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: install
	$(BIN)/python -m tools.reference

bench: install
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.turnaround
	$(BIN)/python -m benchmarks.long_job
	$(BIN)/python -m benchmarks.decisions
	$(BIN)/python -m benchmarks.checkpointing

preemptions: install
	$(BIN)/python -m benchmarks.preemptions --count 20
	$(BIN)/python -m pytest -m soak tests/system/test_preempted.py

chaos: install
	$(BIN)/python -m pytest -m "soak" --deselect tests/system/test_preempted.py
	$(BIN)/python -m benchmarks.chaos --minutes 10

soak: install
	$(BIN)/python -m benchmarks.chaos --minutes 60

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
