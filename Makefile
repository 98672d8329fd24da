# Two commands for a newcomer: `make demo` and `make test`. Both make the environment first.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint format clean

demo: $(VENV)/.installed
	$(BIN)/ogkd demo --out demo-output

test: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The build tool comes first, from the same pins, so that no other version is fetched for the build.
$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Making the environment in $(VENV) (some minutes the first time) ..."
	$(PYTHON) -m venv $(VENV)
	$(PIP) setuptools
	$(PIP) --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) --no-build-isolation -e ".[dev,dicom,audit,serve,onnx,ray]"
	@# For the tests of the web page, where there is a browser; they are skipped without it.
	@command -v npm >/dev/null && npm install --silent --no-audit --no-fund \
	  --prefix $(VENV)/node playwright-core@1.65.0 || true
	@touch $@

clean:
	rm -rf $(VENV) demo-output build dist src/*.egg-info
