# make demo   see an agent survive kill -9 (STORE=postgres: on a PostgreSQL of its own)
# make test   all tests                       make check  format, lint, types, layers (CI runs both)
# make sync   write the blocking face (src/holdfast/sync) again, after a change of the async one
# make chaos  the same faults, many times     make bench  measure, and write docs/performance.md
# make test-under-load  all tests beside 8 busy loops
#   these three take SHARD=2/4 (a part of the tests), AREA="agents peers" (folders of tests) and
#   WORKERS=1 (how many tests at once)
# make campaign  which parts were run for this commit, and which are missing
# make test-python PYTHON=3.13  the core of the tests on another version of Python
# make conformance  run LangGraph's kit for savers and MCP's for servers (conformance-mcp: that
#   one only), and write their pages in docs/reference
# make bench-langgraph  the same beside LangGraph's own savers
# make mutants  change the source in one place at a time, and see whether a test turns red (COUNT=20,
#   AREA="kernel stores", SHARD=2/4, AGAIN=1: survivors too); mutants-map first: which tests reach what
# make mission  which rows of the mission are shown by tests
SHELL := /bin/bash
PYTHON := $(shell for v in 3.14 3.13 3.12 3.11; do \
	p=$$(command -v python$$v) && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && exit; done; \
	p=$$(command -v python3) && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && echo $$p)
BIN := .venv/bin
STORE ?= sqlite

.PHONY: demo demo-sqlite demo-postgres test test-under-load test-python campaign check sync bench bench-langgraph chaos conformance conformance-mcp mission mutants mutants-map mutants-report clean

demo: demo-$(STORE)

demo-sqlite: .venv/core
	@$(BIN)/holdfast demo crash

demo-postgres: .venv/dev
	@$(BIN)/python -m holdfast.testing.with_postgres $(BIN)/holdfast demo crash --store {url}
	@echo "(That server was made for the demo, and is gone.)"

test chaos test-under-load: .venv/dev
	@$(BIN)/python -m tests.suite.campaign $@ --shard "$(SHARD)" --area "$(AREA)" --workers "$(WORKERS)"

campaign: .venv/dev
	@$(BIN)/python -m tests.suite.campaign show

test-python: .venv-$(PYTHON)/dev
	@.venv-$(PYTHON)/bin/python -m tests.suite.campaign test-python --shard "$(SHARD)" --area "$(AREA)" --workers "$(WORKERS)"

check: .venv/dev
	@$(BIN)/ruff format --check src tests benchmarks examples tools
	@$(BIN)/ruff check src tests benchmarks examples tools
	@$(BIN)/python -m tools.blocking_face --check
	@$(BIN)/pyright
	@$(BIN)/lint-imports --no-cache

sync: .venv/dev
	@$(BIN)/python -m tools.blocking_face

bench: .venv/dev
	@$(BIN)/python -m benchmarks

conformance: .venv/dev conformance-mcp
	@$(BIN)/python -m tests.integrations.langgraph.conformance_report

conformance-mcp: .venv/node
	@$(BIN)/python -m tests.edges.mcp.conformance.report

bench-langgraph: .venv/dev
	@$(BIN)/python -m benchmarks.langgraph

mission: .venv/dev
	@$(BIN)/python -m tests.mission.report

mutants-map: .venv/dev
	@$(BIN)/python -m tools.mutants map --area "$(AREA)" --shard "$(SHARD)" --workers "$(or $(WORKERS),2)"

mutants: .venv/dev
	@$(BIN)/python -m tools.mutants run --area "$(AREA)" --shard "$(SHARD)" --count "$(COUNT)" \
		--seed "$(SEED)" --budget "$(BUDGET)" --again "$(AGAIN)" --only "$(ONLY)"

mutants-report: .venv/dev
	@$(BIN)/python -m tools.mutants report

clean:
	rm -rf .venv .venv-* .pytest_cache .ruff_cache .hypothesis build dist

.venv/made:
	@if [ -z "$(PYTHON)" ]; then \
		echo "Holdfast needs Python 3.11 or newer, and none was found: install one (Debian: apt-get install python3 python3-venv)" >&2; exit 1; fi
	@$(PYTHON) -m venv .venv || { \
		echo "$(PYTHON) cannot make virtual environments: install its venv module (Debian: apt-get install python3-venv)" >&2; rm -rf .venv; exit 1; }
	@touch $@

.venv/core: .venv/made pyproject.toml constraints.txt
	@echo "installing Holdfast into .venv …" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/dev: .venv/made pyproject.toml constraints.txt
	@echo "installing Holdfast and its test tools into .venv …" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ .venv/core

# Which is also tried: a version that pyenv has and that is not on the path.
.venv-%/dev: pyproject.toml constraints.txt
	@for p in python$* ~/.pyenv/versions/$*.*/bin/python; do \
		$$p -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "$*")' 2>/dev/null && found=$$p; done; \
	if [ -z "$$found" ]; then \
		echo "there is no Python $*: name an installed version, such as make test-python PYTHON=3.13" >&2; exit 1; fi; \
	$$found -m venv .venv-$* || { rm -rf .venv-$*; exit 1; }
	@echo "installing Holdfast and its test tools into .venv-$* …" >&2
	@.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

.venv/node: .venv/dev
	@echo "installing Node into .venv …" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[conformance]'
	@touch $@
