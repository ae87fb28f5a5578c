# Every target makes .venv and installs what it needs on first use, and again only when pyproject.toml changes.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.PHONY: help demo test check bench broker golden fuzz chaos soak test-all interop bench-compare docs jdk clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

test: jdk $(READY) ## all tests that need nothing but this machine
	@$(BIN)/python -m pytest -n auto --dist loadgroup --durations 20 --ignore tests/interop

check: $(READY) ## format, lint and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

bench: $(READY) ## speed against baselines, as ratios of one run
	@$(BIN)/python -m bench

golden: $(READY) ## only the tests on data that Apache's programs wrote
	@$(BIN)/python -m pytest tests/golden

fuzz: $(READY) ## a million random and mutated frames through the decoders
	@cd tests && ../$(BIN)/python -m support.fuzz --count 1000000

docs: $(READY) ## write the generated pages again
	@$(BIN)/python -m rmq_core.config > docs/config.md

demo: jdk $(READY) ## the whole product in two minutes, on a broker of its own
	@$(BIN)/python -m jobs.demo

broker: $(READY) ## a broker on 10911 with its name server on 9876
	@$(BIN)/python -m rmq_core.broker

chaos: $(READY) ## 200 kills of a writing process, 150 of a broker under load
	@$(BIN)/python -m pytest tests/chaos --rounds 200

MINUTES ?= 10
soak: $(READY) ## half of a broker's full load for MINUTES=10: nothing lost, memory flat
	@$(BIN)/python -m bench.soak --minutes $(MINUTES)

interop: jdk $(READY) ## Apache's own clients and brokers against ours; needs Maven
	@$(BIN)/python -m pytest tests/interop -n 4 --dist loadgroup --durations 10 --write-matrix whole

bench-compare: jdk $(READY) ## speed beside Apache's broker; needs Maven
	@$(BIN)/python -m bench.compare

test-all: test fuzz chaos soak interop ## everything

# Spark needs a JDK; Debian's is installed where that is allowed.
jdk:
	@bash scripts/jdk

clean: ## remove what was built
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis bench/build
