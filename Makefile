# Two commands for a newcomer: `make demo` and `make test`. Both make the environment first.
# For every day: `make check` (lint and fast tests), `make format`, `make docs`.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist worksteal
LOWEST ?= $(or $(TMPDIR),/tmp)/ogkd-lowest

.PHONY: demo check test hostile fuzz lowest coverage evidence audit dist lint format docs browser lock clean

demo: $(VENV)/.installed
	$(BIN)/ogkd demo --out demo-output

check: lint
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test: $(VENV)/.dev
	$(PYTEST) $(PYTEST_ARGS)

# Every hostile input in every place, a fault at every operation on files, and guided fuzzing: for the night.
# In memory where the system has room for files there: a disk would take most of the time.
MEMORY := TMPDIR=$$(test -w /dev/shm && echo /dev/shm || echo $${TMPDIR:-/tmp})
hostile: fuzz
	OGKD_HOSTILE=all $(MEMORY) $(PYTEST) -o tmp_path_retention_policy=failed $$(grep -rl --include='test_*.py' OGKD_HOSTILE tests) $(PYTEST_ARGS)

# Each reader for FUZZ seconds. Atheris is no dependency: it has wheels for few systems.
FUZZ ?= 15
FUZZED ?= $(LOWEST)/fuzzed
fuzz: $(VENV)/.dev
	test -d $(LOWEST)/atheris || $(BIN)/python -m pip install --quiet --target $(LOWEST)/atheris atheris
	$(MEMORY) PYTHONPATH=$(LOWEST)/atheris:tests $(BIN)/python -m hostile.fuzz $(FUZZED) $(FUZZ)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The site, with the command-line and Python reference; a broken link is an error.
docs: $(VENV)/.dev
	$(BIN)/properdocs build --strict --site-dir site
	@echo "Open site/index.html"

# Hashes of all that users install, in the versions of constraints.txt. Not of torch: users choose its build.
EXTRAS := dicom serve onnx audit bench excel
lock:
	@echo "torch; python_version < '3'" > $(VENV)/without-torch.txt
	uv pip compile pyproject.toml $(EXTRAS:%=--extra %) --constraint constraints.txt --universal --python-version 3.11 \
	    --override $(VENV)/without-torch.txt --generate-hashes --no-annotate --no-header --quiet --output-file requirements.lock

# Lines and branches of src that the fast tests reach; tests that start processes are among the slow ones.
coverage: $(VENV)/.dev
	$(BIN)/python -m coverage run --branch --source ogkd --data-file $(VENV)/.coverage -m pytest -q -m "not slow" $(PYTEST_ARGS)
	$(BIN)/python -m coverage report --data-file $(VENV)/.coverage --skip-covered --sort cover

# What docs/evidence is made of: hours. `make evidence NAMES=trust` measures one experiment. Stops and goes on.
evidence: $(VENV)/.dev
	$(BIN)/python -m benchmarks run $(NAMES)

# The fast tests with the lowest versions that pyproject.toml allows, in an environment of their own.
# TORCH=2.13.0 keeps one version of torch; UV_FIND_LINKS names a folder of wheels that is not on PyPI.
lowest:
	test -x $(LOWEST)/uv/bin/uv || { $(PYTHON) -m venv $(LOWEST)/uv && $(LOWEST)/uv/bin/python -m pip install --quiet uv; }
	@echo "$(TORCH:%=torch==%)" > $(LOWEST)/overrides.txt
	$(LOWEST)/uv/bin/uv venv --quiet --clear --python $(PYTHON) $(LOWEST)/env
	$(LOWEST)/uv/bin/uv pip compile pyproject.toml $(EXTRAS:%=--extra %) --extra dev --resolution lowest-direct \
	    --override $(LOWEST)/overrides.txt --python $(LOWEST)/env --no-annotate --no-header --quiet --output-file $(LOWEST)/lowest.txt
	$(LOWEST)/uv/bin/uv pip install --quiet --python $(LOWEST)/env --requirement $(LOWEST)/lowest.txt
	$(LOWEST)/uv/bin/uv pip install --quiet --python $(LOWEST)/env --no-deps --editable .
	$(LOWEST)/env/bin/python -m pytest -q -m "not slow" $(PYTEST_ARGS)

# Known vulnerabilities of what requirements.lock installs; asks the package index.
audit:
	test -x $(LOWEST)/audit/bin/pip-audit || { $(PYTHON) -m venv $(LOWEST)/audit && $(LOWEST)/audit/bin/python -m pip install --quiet pip-audit; }
	$(LOWEST)/audit/bin/pip-audit --requirement requirements.lock --disable-pip --require-hashes --strict

# What a release uploads: the sources and the wheel, each checked as PyPI does.
dist:
	$(PYTHON) -m venv $(LOWEST)/dist && $(LOWEST)/dist/bin/python -m pip install --quiet build twine
	rm -rf dist && $(LOWEST)/dist/bin/python -m build && $(LOWEST)/dist/bin/twine check --strict dist/*

# What drives Chromium in the tests of the web page; without it they are skipped.
browser: $(VENV)/node/node_modules/playwright-core/index.js

$(VENV)/node/node_modules/playwright-core/index.js:
	npm install --silent --no-audit --no-fund --prefix $(VENV)/node playwright-core@1.65.0

# The build tool comes first, from the same pins, so that no other version is fetched for the build.
$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Making the environment in $(VENV) (some minutes the first time) ..."
	$(PYTHON) -m venv $(VENV)
	$(PIP) setuptools
	$(PIP) --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) --no-build-isolation -e ".[dev,docs,dicom,audit,serve,onnx,bench,excel]"
	@command -v npm >/dev/null && $(MAKE) --no-print-directory browser || true
	@touch $@

clean:
	rm -rf $(VENV) demo-output site build dist src/*.egg-info
