# Each target sets up what it needs in .venv. Python 3.11 or newer is the only thing that has to be there.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install demo serve chromium prometheus systemd bytecode test test-fast test-system lint docs bench preemptions core mutants chaos soak audit sbom clean

help:
	@echo "make install   set up .venv"
	@echo "make demo      tune a real model under a real budget, and show the best configuration and the bill"
	@echo "make serve     start the service on http://127.0.0.1:8000"
	@echo "make test      run all tests; make test-fast: those that need no cluster; test-system: those that do"
	@echo "make core      the branches of the ledger and of the decisions that tests go through: all of them"
	@echo "make mutants   mistakes planted in the ledger and the decisions, each of which a test has to notice"
	@echo "make lint      ruff, mypy, import-linter"
	@echo "make docs      docs/reference anew, from the code"
	@echo "make bench     the benchmarks of benchmarks/README.md"
	@echo "make preemptions  machines taken away from a running trial, twenty of each kind, how long it took to go on, and that it changed nothing"
	@echo "make chaos     jobs under the faults of a seed, for ten minutes (again: make chaos CHAOS=\"--seed 7\"); make soak: an hour"
	@echo "make audit     known vulnerabilities of what is pinned (asks the network); make sbom: its bill of materials, in sbom.json"

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

# One after the other: side by side they end no sooner, and whichever is left what the other does not take runs into its limits.
test: bytecode chromium prometheus systemd
	@$(MAKE) --no-print-directory WORKERS=2 test-fast
	@$(MAKE) --no-print-directory test-system

WORKERS ?= 3
test-fast: bytecode prometheus systemd
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "$(WITHOUT_A_SERVICE)"

test-system: bytecode chromium prometheus
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "(system or browser) and not soak"

# The tests of what is listed in pyproject.toml as the core, and no more of them than it takes to go through all of its branches.
CORE_TESTS := tests/domain tests/contracts \
	$(addprefix tests/tuning/test_,checkpointing.py continuing.py decide.py endings.py guard.py placement.py reserve.py schedulers.py) \
	$(addprefix tests/store/test_,above.py above_waits.py append_only.py books.py jobs.py journal_ends.py journal_rows.py launches.py leadership.py leases.py postgresql.py quotas.py) \
	$(addprefix tests/simulation/test_,fleet.py price_truth.py waiting_bills.py windows.py) \
	$(addprefix tests/engine/test_,clocks.py ends.py fallback.py going_back.py learning.py outages.py pace.py placement.py purses.py standing.py turns.py) \
	tests/simulation/test_simulated_jobs.py::test_a_slow_sampler_suggests_the_same_outside_of_a_transaction
# They take a minute, and no branch that the others do not.
CORE_LEAVES := tests/store/test_above.py::TestAboveMachine \
	$(addprefix tests/store/test_leadership.py::test_,on_postgresql_a_leader_that_is_stopped_in_the_middle_of_a_write_is_followed processes_that_stand_still_on_one_file_write_in_the_order_of_their_terms)

core: install
	$(BIN)/coverage run -m pytest --hypothesis-seed=0 $(CORE_TESTS) $(addprefix --deselect ,$(CORE_LEAVES))
	$(BIN)/coverage report --skip-covered

mutants: install
	$(BIN)/python -m tools.mutants

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.checks

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
	$(BIN)/python -m tests.chaos --minutes 10 $(CHAOS)

soak: install
	$(BIN)/python -m tests.chaos --minutes 60 $(CHAOS)

# Apart from what they look at, of which they shall be no part.
$(VENV)/audit/.installed: constraints.txt pyproject.toml
	@test -x $(VENV)/audit/bin/python || $(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip install --quiet --disable-pip-version-check -c constraints.txt pip-audit cyclonedx-bom
	@touch $@

# Strict: what pypi.org does not answer for is no pass.
audit: $(VENV)/audit/.installed
	@echo "asks pypi.org for advisories: this needs a network"
	$(VENV)/audit/bin/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt

sbom: install $(VENV)/audit/.installed
	$(VENV)/audit/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml --output-file sbom.json $(BIN)/python

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
