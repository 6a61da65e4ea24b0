# Each target does everything from a fresh clone: environment, installation, job.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ARGS ?=

# Keep bytecode, even where the machine is set not to: pytest then compiles a test file only after a change.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test layers types pytest slow bench bench-peers plot figures docs baselines freeze golden clean

run: $(INSTALLED)  ## train Mamba on pfa-small-v1 and score it
	$(BIN)/regbench run --arch mamba $(ARGS)

test: $(INSTALLED)  ## lint, types, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory -j 3 layers types pytest

layers: $(INSTALLED)
	$(BIN)/lint-imports

types: $(INSTALLED)
	$(BIN)/mypy

# A file stays in one process: all would compile the same kernels otherwise.
pytest: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n logical --maxprocesses 4 --dist loadfile $(ARGS)

slow: $(INSTALLED)  ## the tests that train for minutes
	$(BIN)/pytest -m slow $(ARGS)

bench: $(INSTALLED)  ## speed and memory, as ratios within one run
	$(BIN)/pytest tests/benchmarks --benchmark-only -m 'not gpu' -q $(ARGS)

bench-peers: $(INSTALLED)  ## a training step of each architecture against its best form in plain PyTorch
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/benchmarks/test_bench_peers.py --benchmark-only -q $(ARGS)

plot: $(INSTALLED)  ## what the n-gram head costs as sequences grow: measured, then drawn in docs/figures
	OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.ngram_cost

figures: $(INSTALLED)  ## write the tables of the pages and draw docs/figures, from entries, sweeps and docs/measured
	$(BIN)/python docs/figures/findings.py
	$(BIN)/python docs/tables.py
	$(BIN)/python docs/figures/boards.py
	$(BIN)/python docs/figures/score_by_position.py
	$(BIN)/python docs/figures/instances.py
	$(BIN)/python docs/figures/probes.py
	$(BIN)/python docs/figures/tint.py

docs: $(INSTALLED)  ## build the site of docs/ in site/, with the leaderboard as a page and as data; a broken link is an error
	$(BIN)/zensical build --clean --strict
	$(BIN)/regbench leaderboard --page site/leaderboard.html
	$(BIN)/python -c 'import regbench; regbench.entries().to_parquet("site/entries.parquet", index=False)'
	cp leaderboard/RULES.md leaderboard/*-v*.md leaderboard/*-v*.csv leaderboard/*-v*.tex site/
	find leaderboard/entries -name '*.py.txt' -exec cp {} site/ ';'
	tar cf - architectures/*.py architectures/*/*.py | tar xf - -C site

TRACKS := pfa-small-v1 pfa-v1 pfa-reference-v1
baselines: $(INSTALLED)  ## score the baselines and measure what time buys Bayes, into baselines/README.md: 25 minutes of a core
	OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/regbench baselines $(TRACKS) --write baselines/README.md
	OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.bayes_quality

freeze: $(INSTALLED)  ## record what the tracks generate, after adding one
	$(BIN)/python -m regbench.tracks.freeze

golden: $(INSTALLED)  ## record how architectures train, where one is meant to train otherwise now; ARGS="mamba" for one
	$(BIN)/python -m tests.golden.regenerate $(ARGS)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --config-settings editable_mode=compat -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build site .cache *.egg-info
