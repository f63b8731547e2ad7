# make demo | test | check | bench | lint | docs; each first makes .venv with everything it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.graphc-installed
EXTRAS ?= dev
CASES  ?= 0

.PHONY: help demo test check bench lint docs clean

help:
	@echo "make demo    compile and run the sample model"
	@echo "make test    ruff, mypy and pytest, quick cases and two of each function (15 to 45 min on two cores)"
	@echo "make check   the same with every test, or with CASES=N at most N cases of each function"
	@echo "make bench   time the sample model against ONNX Runtime"
	@echo "make lint    ruff and mypy only"
	@echo "make docs    the documentation as a site, in build/site"
	@echo "make clean   remove .venv, caches and build outputs"

# Installed again whenever pyproject.toml changes.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]'
	@touch $@

demo: $(STAMP)
	$(BIN)/python -m graphc.demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -q -n auto --dist worksteal --quick

check: lint
	$(BIN)/python -m pytest -q -n auto --dist worksteal --cases $(CASES)

bench: $(STAMP)
	$(BIN)/graphc bench models/digits_cnn.onnx --dim N=1 --threads 1
	$(BIN)/graphc bench models/digits_cnn.onnx --dim N=64 --threads 1

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	$(BIN)/mkdocs build --quiet
	@echo build/site/index.html

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
