# The words to know: run, test, check, fmt. `make` alone explains them.
PY := .venv/bin/python
DATA_DIR ?= var
PORT ?=
ARGS ?=
FULL ?=
SECONDS ?= 300
SEED ?=

.DEFAULT_GOAL := help
.PHONY: help setup run test check fmt histories bench faults oracle pools fuzz

help:
	@printf '%s\n' \
	  'make run        install, start everything on this machine, run examples/hello.py, keep serving' \
	  '                (DATA_DIR=var keeps the state, PORT=8080 fixes the port of the API)' \
	  'make test       install and run the whole test suite (ARGS="-k name" chooses)' \
	  'make case-C17   run the tests of one case of docs/cases.md (FULL=1: at full size and duration)' \
	  'make check      format, lint, types, import rules, sizes, compose file' \
	  'make fmt        format the code' \
	  'make histories  record the workflow histories that replay tests use' \
	  'make faults     kill, freeze and cut off a whole system (SECONDS=300 how long, SEED=n the same again)' \
	  'make oracle     the same around watchers, which must see every change once' \
	  'make pools      pools of workers: windows, versions, many workers (FULL=1: at full size and duration)' \
	  'make fuzz       malformed requests to every route (SECONDS=300 how long, SEED=n the same again)' \
	  'make bench      measure the hot path beside plain Temporal, as ratios' \
	  'make setup      only install (.venv, from hashed pins)'

setup:
	@tools/setup

run: setup
	@exec $(PY) -m workers up --data-dir $(DATA_DIR) $(if $(PORT),--port $(PORT)) --example examples/hello.py $(ARGS)

test: setup
	$(PY) -m pytest $(ARGS)

case-%: setup
	@$(PY) -m pytest --case $* $(if $(FULL),--full) $(ARGS)

check: setup
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy .
	.venv/bin/lint-imports
	$(PY) -m tools.check_size
	$(PY) -m tools.check_compose

fmt: setup
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

histories: setup
	$(PY) -m tools.record_histories $(ARGS)

bench: setup
	$(PY) -m bench $(ARGS)

faults: setup
	SECONDS_OF_FAULTS=$(SECONDS) SEED=$(SEED) $(PY) -m pytest tests/faults/test_faults.py -s $(ARGS)

pools: setup
	$(PY) -m pytest $(if $(FULL),--full) tests/e2e/test_pools.py tests/e2e/test_large_pool.py tests/cases/test_rollouts.py $(ARGS)

oracle: setup
	ORACLE_SECONDS=$(SECONDS) ORACLE_SEED=$(SEED) $(PY) -m pytest tests/oracle --log-cli-level=INFO $(ARGS)

fuzz: setup
	SECONDS_OF_FUZZING=$(SECONDS) SEED=$(SEED) $(PY) -m pytest --full -s tests/api/test_fuzz.py $(ARGS)
