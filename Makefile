VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# A worker for each core, up to four; the tests of a file need not run in one of them.
PARALLEL ?= --numprocesses auto --maxprocesses 4 --dist worksteal

.PHONY: help demo test test-slow fuzz faults zoo docs-zoo census lint format bench clean

help:
	@echo "make demo       train deep networks with and without normalization; a table, figures and a page"
	@echo "make test       the tests"
	@echo "make test-slow  the tests that take minutes"
	@echo "make fuzz       10,000 wrong command lines, files, texts and tensors: none may end in a traceback"
	@echo "make faults     runs and sweeps killed, without disk or damaged at every file operation; takes an hour"
	@echo "make zoo        map a network of every architecture module of timm, and of others; takes minutes"
	@echo "make docs-zoo   the table of these networks, docs/zoo.md"
	@echo "make census     map, convert and check the networks of fourteen packages: docs/census.md; takes hours"
	@echo "make lint       ruff and mypy"
	@echo "make bench      speed, each figure a ratio to a baseline measured in the same run"

# Every extra is installed; constraints.txt pins what CI uses.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "normless needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,all]"
	touch $@

demo: $(INSTALLED)
	$(BIN)/normless demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not slow and not zoo" $(PARALLEL)

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

# `make fuzz FUZZ="--cases 2000 --seed 7 --kinds files call"` takes others.
fuzz: $(INSTALLED)
	$(BIN)/python tests/fuzz/fuzz.py $(FUZZ)

# The second part kills workers, drivers and the database server of sweeps on PostgreSQL and Ray.
faults: $(INSTALLED)
	PYTHONPATH=tests/sweeps $(BIN)/python tests/train/faults.py
	$(BIN)/python -m pytest -m slow tests/sweeps/test_disturbed_sweep.py

zoo: $(INSTALLED)
	$(BIN)/python -m pytest tests/zoo

docs-zoo: $(INSTALLED)
	$(BIN)/python benchmarks/zoo.py

# Resumes where it ended; `make census CENSUS="--packages timm --count 10"` takes a part.
census: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[census]"
	$(BIN)/normless bench census --out census $(CENSUS)
	cp census/census.md docs/census.md

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/normless bench all

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
