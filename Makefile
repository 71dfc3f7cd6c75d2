# Two commands for a newcomer: make demo, make test. Each makes its own .venv; a second call reuses it.
PYTHON ?= python3
VENV := .venv
# Apart, since torchvision goes with one version of torch only.
ZOO := .venv-zoo
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-zoo lint bench docs format clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

# What a first look needs, without the libraries that only tests and docs use.
$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[lab,report]'
	@touch $@

$(VENV)/.made: $(VENV)/.demo
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test,docs]'
	@touch $@

demo: $(VENV)/.demo ## eight wirings of a 64-block network on digits: tables, verdicts, report.html
	$(BIN)/kilolayer lab wirings --lr 0.05 --steps 100 --width 128 --out runs/demo

test: $(VENV)/.made ## the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile

$(ZOO)/.made: pyproject.toml
	$(PYTHON) -m venv $(ZOO)
	$(ZOO)/bin/pip install --quiet 'torch==2.14.1' 'torchvision==0.29.1' timm transformers x-transformers
	$(ZOO)/bin/pip install --quiet --no-deps 'torchscale==0.3.0'
	$(ZOO)/bin/pip install --quiet --editable '.[report]' 'pytest>=8' hypothesis einops fairscale scipy
	@touch $@

test-zoo: $(ZOO)/.made ## the structure reader on the models of timm, torchvision and torchscale too; a second environment
	OMP_NUM_THREADS=1 $(ZOO)/bin/python -m pytest tests/contract/test_structure_models.py

lint: $(VENV)/.made ## ruff, mypy, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.made ## timings as ratios, one after the other; nothing else should run meanwhile
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/wirings.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/layers.py

docs: $(VENV)/.made ## the documentation as pages in site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(VENV)/.made ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environments and caches
	rm -rf $(VENV) $(ZOO) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
