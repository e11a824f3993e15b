VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
LOWEST ?= .venv-lowest
# A test file or more for each dependency of the extras.
LOWEST_TESTS ?= tests/library/test_conversion.py tests/library/test_saving.py tests/test_package.py tests/library/recording \
  tests/library/residual tests/library/lifting tests/library/folding tests/library/probes/test_measure.py \
  tests/library/doctor/test_diagnosis.py tests/library/cli tests/lab/cli tests/lab/data tests/lab/plots \
  tests/lab/train/test_train_command.py tests/lab/train/test_same_run.py tests/papers/text tests/lab/sweeps \
  tests/library/integrations tests/library/models/test_text_classifier.py tests/library/optim/test_kinds_of_networks.py \
  tests/papers/test_pages.py
# A worker for each core, up to four; the tests of a file need not run in one of them.
PARALLEL ?= --numprocesses auto --maxprocesses 4 --dist worksteal

.PHONY: help docs docs-version notebooks dist demo test test-slow test-gpu fuzz faults lowest zoo docs-zoo goldens refusals census lint format bench bench-doctor evidence campaign campaign-save clean

help:
	@echo "make demo    train deep networks with and without normalization; a table, figures and a page"
	@echo "make test    the tests"
	@echo "make lint    ruff and mypy"
	@echo "make format  ruff, with repairs"
	@echo "make docs    the site, from docs and mkdocs.yml, in site/; strict: a warning is an error"
	@echo "make bench   speed, each figure a ratio to a baseline measured in the same run"
	@echo "The others are listed in CONTRIBUTING.md."

# Every extra is installed; constraints.txt pins what CI uses.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "normless needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,all]"
	touch $@

demo: $(INSTALLED)
	$(BIN)/normless demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not slow and not zoo and not gpu" $(PARALLEL)

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow $(PARALLEL)

# On a machine with a CUDA card; elsewhere each of them is skipped.
test-gpu: $(INSTALLED)
	$(BIN)/python -m pytest -m gpu tests/gpu $(PARALLEL)

# `make fuzz FUZZ="--hypothesis-seed 7 -k damaged"` takes others.
fuzz: $(INSTALLED)
	$(BIN)/python -m pytest tests/fuzz --hypothesis-profile fuzz $(PARALLEL) $(FUZZ)

faults: $(INSTALLED)
	$(BIN)/python -m pytest tests/lab/train/file_faults.py tests/lab/sweeps/process_faults.py $(PARALLEL) $(FAULTS)

# Older libraries warn of what they use of one another.
lowest:
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet uv
	$(LOWEST)/bin/uv pip compile --quiet --upgrade --resolution lowest-direct --extra all --python $(LOWEST)/bin/python \
	  --output-file $(LOWEST)/lowest.txt pyproject.toml
	$(LOWEST)/bin/python -m pip install --quiet --requirement $(LOWEST)/lowest.txt --editable . pytest hypothesis jsonschema psutil scikit-learn mpmath
	$(LOWEST)/bin/python -m pytest -m "not slow and not zoo" -W ignore $(LOWEST_TESTS)

zoo: $(INSTALLED)
	$(BIN)/python -m pytest -m zoo tests/matrix tests/library/zoo

# `make goldens ROWS="ViT GPT"` and `make refusals ROWS=…` look at some rows or kinds alone.
goldens: $(INSTALLED)
	PYTHONPATH=.:tests $(BIN)/python -m gallery.goldens $(ROWS)

refusals: $(INSTALLED)
	PYTHONPATH=.:tests $(BIN)/python -m matrix.refusals $(ROWS)

# Once its tools are installed it needs no network.
docs: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The versions lie beside one another; `latest` is this one. Push the branch to publish it.
docs-version: docs
	NO_MKDOCS_2_WARNING=1 PATH="$(abspath $(BIN)):$$PATH" mike deploy --update-aliases \
	  $$($(BIN)/python -c "import normless; print(normless.__version__)") latest
	$(BIN)/mike set-default latest

notebooks: $(INSTALLED)
	$(BIN)/python tests/notebooks_of_tutorials.py

dist: $(INSTALLED)
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m pytest -m slow tests/test_distribution.py

docs-zoo: $(INSTALLED)
	$(BIN)/python benchmarks/zoo.py

# Resumes where it ended; `make census CENSUS="--packages timm --count 10"` takes a part.
census: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[lab,zoo]" --requirement benchmarks/census/requirements.txt
	$(BIN)/python -m benchmarks.census --out census $(CENSUS)
	cp census/census.md docs/results/census.md

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# `python -m benchmarks.card` measures a CUDA card.
bench: $(INSTALLED)
	$(BIN)/normless bench step
	$(BIN)/normless bench step --depth 16 --width 4
	$(BIN)/normless bench inference
	$(BIN)/normless bench memory
	for WHAT in conversion probe watch sweep; do $(BIN)/python -m benchmarks.ratios $$WHAT; done
	$(BIN)/python -m benchmarks.images_per_second

# Rows of the held half are counted, and not shown; `make bench-doctor DOCTOR="--set published --half seen"` asks a part.
bench-doctor: $(INSTALLED)
	$(BIN)/python -m tests.faults --diagnoser normless --half all --workers 2 $(DOCTOR)

# Resumes where it ended: finished runs stay in the folder `evidence`. `make evidence EVIDENCE=gpu` trains on a card, several
# runs side by side.
EVIDENCE ?= small
RESULTS := docs/reproduction
PAGES := --page $(RESULTS)/claims.html --claims $(RESULTS)/claims.md --silent $(RESULTS)/wrong_or_silent.md --verdicts $(RESULTS)/verdicts.md
evidence: $(INSTALLED)
	-$(BIN)/normless reproduce --headlines --budget $(EVIDENCE) --out evidence $(if $(WORKERS),--workers $(WORKERS))
	$(BIN)/normless report evidence --runs docs/reproduction/runs.parquet
	$(BIN)/normless report --from docs/reproduction/runs.parquet $(PAGES)
	$(BIN)/normless report --protocols docs/reproduction/protocols.md

# What the verdicts still lack, beside other work: two processes of one thread each, at the lowest priority. Stopped at any
# moment, the same command goes on: on the same machine from checkpoints, elsewhere from the rows that campaign-save kept.
# `python -m normless_papers.cli.campaign --status --out $(CAMPAIGN)` shows what is done.
MINUTES ?= 170
CAMPAIGN ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/normless/campaign
CAMPAIGN_DATA ?= $(wildcard ../shared/data)
RUNS := $(RESULTS)/runs.parquet
campaign: $(INSTALLED)
	exec nice -n 19 $(BIN)/python -m normless_papers.cli.campaign --minutes $(MINUTES) --out $(CAMPAIGN) --runs $(RUNS) $(if $(CAMPAIGN_DATA),--data-root $(CAMPAIGN_DATA))

campaign-save: $(INSTALLED)
	$(BIN)/normless report $(CAMPAIGN) --from $(RUNS) --runs $(RUNS) --page $(CAMPAIGN)/index.html
	$(BIN)/normless report --from $(RUNS) $(PAGES)
	$(BIN)/normless report --protocols docs/reproduction/protocols.md

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
