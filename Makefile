# Each target installs what it needs in .venv. Python 3.11 or newer is the only requirement.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install install-dev demo serve programs bytecode test test-all lint docs bench preemptions core mutants chaos soak audit sbom clean

help:
	@echo "make install      install the service in .venv; make install-dev: with the tools for tests, lint and docs"
	@echo "make demo         tune a real model under a real budget, and show the best configuration and the bill"
	@echo "make serve        start the service on http://127.0.0.1:8000"
	@echo "make test         run the gate: the tests that every change must pass (docs/testing.md)"
	@echo "make test-all     run all tests: the gate, the long tests, all seeds and all generated requests"
	@echo "make core         measure that the tests take every branch of the ledger and of the decisions"
	@echo "make mutants      plant mistakes in the ledger and the decisions; a test has to notice each of them"
	@echo "make lint         ruff, mypy, import-linter, and checks of the docs"
	@echo "make docs         generate docs/reference from the code"
	@echo "make bench        run the benchmarks of benchmarks/README.md"
	@echo "make preemptions  preempt a running trial twenty times in each way, and measure how long it takes to continue"
	@echo "make chaos        inject the faults of a seed for ten minutes (repeat: make chaos CHAOS=\"--seed 7\"); make soak: an hour"
	@echo "make audit        look up known vulnerabilities of the pinned packages (needs a network); make sbom: write sbom.json"

# Usage: $(call pip,WHAT). Prints how long an installation took and how large .venv is then.
define pip
	@began=$$(date +%s); \
	  $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0" && \
	  $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e "$(1)" && \
	  echo "installed $(1) in $$(($$(date +%s) - began)) s; $(VENV) is $$(du -sh $(VENV) | cut -f1)"
endef

# The stamps are renewed when the pins or the project's metadata change.
$(VENV)/.installed: constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed: install it (Debian, Ubuntu: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "Python's venv module is missing: install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(call pip,.)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(call pip,.[dev$(comma)s3])
	@touch $@

comma := ,

install: $(VENV)/.installed

install-dev: $(VENV)/.installed-dev

demo: install
	@$(BIN)/tuner demo

serve: install
	@$(BIN)/tuner serve

# Chromium, curl, libgomp, Prometheus, systemd-analyze and PostgreSQL: installed from Debian if this user may do that.
programs: install-dev
	@$(BIN)/python -m tools.programs

# Compile once, as processes of tests that may not write bytecode would each compile what they import.
bytecode: install-dev $(VENV)/.tests-compiled
	@$(BIN)/python -m compileall -q tuner trainables

# pytest rewrites the assertions of a test file once, and caches the result. The gate's seven workers import all files at the same time, so
# without a cache each of them would rewrite all files, in 14 s of processor time.
$(VENV)/.tests-compiled: $(VENV)/.installed-dev $(wildcard tests/*.py tests/*/*.py tests/*/*/*.py)
	@output=$$(env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --all --collect-only -q 2>&1) || { echo "$$output" >&2; exit 1; }
	@touch $@

test: bytecode programs
	$(BIN)/python -m tools.gate

test-all: bytecode programs
	$(BIN)/python -m tools.gate --all

# The tests of what is listed in pyproject.toml as the core, and no more of them than it takes to go through all of its branches.
CORE_TESTS := tests/domain tests/contracts \
	$(addprefix tests/tuning/test_,confirm.py constraints.py decide.py endings.py guard.py placement.py reserve.py schedulers.py worth.py) \
	$(addprefix tests/store/test_,shared_budgets.py shared_budget_waits.py append_only.py books.py jobs.py journal_ends.py journal_rows.py launches.py leadership.py leases.py postgresql.py quotas.py) \
	$(addprefix tests/simulation/test_,fleet.py price_truth.py waiting_bills.py windows.py) \
	$(addprefix tests/driver/test_,clocks.py messages.py outcomes.py spot_eligibility.py fallback.py going_back.py launch_context.py learning.py outages.py pace.py placement.py attempt_leases.py trial_snapshot.py turns.py) \
	tests/worker/test_saves.py \
	tests/simulation/test_simulated_jobs.py::test_slow_sampler_suggests_the_same_outside_of_a_transaction
# They take a minute, and cover no branch that the other tests do not cover.
CORE_LEAVES := tests/store/test_shared_budgets.py::TestSharedBudgetMachine \
	$(addprefix tests/store/test_leadership.py::test_,postgresql_leader_suspended_during_a_write_is_succeeded suspended_processes_write_in_the_order_of_their_terms)

core: programs
	$(BIN)/coverage run -m pytest --hypothesis-profile=core --hypothesis-seed=0 $(CORE_TESTS) $(addprefix --deselect ,$(CORE_LEAVES))
	$(BIN)/coverage report --skip-covered

mutants: programs
	$(BIN)/python -m tools.mutants

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.checks

docs: install-dev
	$(BIN)/python -m tools.reference

bench: install-dev
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.turnaround
	$(BIN)/python -m benchmarks.long_job
	$(BIN)/python -m benchmarks.decisions
	$(BIN)/python -m benchmarks.checkpointing

preemptions: install-dev
	$(BIN)/python -m benchmarks.preemptions --count 20
	$(BIN)/python -m pytest --all -k "twenty or once" tests/system/test_preempted.py

chaos: programs
	$(BIN)/python -m tests.chaos --minutes 10 $(CHAOS)

soak: programs
	$(BIN)/python -m tests.chaos --minutes 60 $(CHAOS)

# In an environment of their own, so that the audit and the list of packages do not include them.
$(VENV)/audit/.installed: constraints.txt pyproject.toml
	@test -x $(VENV)/audit/bin/python || $(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip install --quiet --disable-pip-version-check -c constraints.txt pip-audit cyclonedx-bom
	@touch $@

# Strict: a package for which pypi.org gives no answer counts as a failure.
audit: $(VENV)/audit/.installed
	@echo "asks pypi.org for advisories: this needs a network"
	$(VENV)/audit/bin/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt

sbom: install $(VENV)/audit/.installed
	$(VENV)/audit/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml --output-file sbom.json $(BIN)/python

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
