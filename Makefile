# make demo   install, train the two-agent demo, evaluate it; open runs/demo/report.html
# make test   install, run the tests that are fast
# make test-core  the fast tests of the core, in an environment that has the core alone
# make test-slow  those that start processes or take seconds: CI runs both
# make test-vllm  those of vLLM, which it installs first, in an environment of its own: gigabytes; what came of them is
#               benchmarks/results/vllm_tests.md
# make gpu    what a machine with a GPU is asked: tests, times, memory; results in benchmarks/results/gpu by its name
# make check  lint, types, fast tests
# make real   get a real model of 135 million parameters, train a team of two on it, evaluate it: runs/sums/report.html
# make wheels  a wheel of each package, in dist: pip install --find-links dist "marft[all]"
# make docs   the docs as a site: build/site/index.html
# make mutants  plant small faults in code that computes numbers, one at a time, and list those that no test notices: a
#               night, resumes where it stopped; MUTANTS="--area flows" or MUTANTS="--only learning/credit" for some
# make mutants-sample  a fixed sample of them, in a minute or two
# make golden  train the same runs with a reference commit and this tree, and compare all weights and metrics bit by bit
# make golden-short  a few steps of each, in a few minutes
# make nightly  everything, with a thousand examples a property and 10,000 recipes, all mutants, all studies: a night

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
CORE_VENV ?= .venv-core
unexport PYTHONDONTWRITEBYTECODE # hundreds of processes would compile what they import, each for itself

.PHONY: demo demo-quick wheels real templates test test-core test-slow test-vllm gpu docs mutants mutants-sample golden golden-short nightly check lint types format install clean

install: $(INSTALLED)

$(INSTALLED): $(wildcard packages/*/pyproject.toml) constraints.txt
	$(PYTHON) -c "import sys; assert sys.version_info >= (3, 11), 'MARFT needs Python 3.11 or newer; set PYTHON=python3.11'"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt \
		--editable "packages/marft[dev]" --editable "packages/marft-envs[gymnasium,pettingzoo,textarena]" \
		--editable "packages/marft-serve[a2a,frameworks,gateway,otel,serve,viewer]" --editable "packages/marft-lab[ray]"
	touch $(INSTALLED)

demo: install
	$(BIN)/python -m marft.examples.demo

demo-quick: install
	$(BIN)/python -m marft.examples.demo --quick --output "$$(mktemp -d)"

real: install
	$(BIN)/python tools/smollm2.py $(CURDIR)/runs/models/smollm2
	$(BIN)/marft train benchmarks/real/sums.toml --overwrite --samples 5 --output runs \
		--models.base.path $(CURDIR)/runs/models/smollm2
	$(BIN)/marft eval runs/sums --checkpoint base,last --tasks 80
	$(BIN)/marft report runs/sums

# Official chat templates for tests, out of TRL's wheel, which is not installed. Without a registry, their tests are skipped.
TEMPLATES = build/templates/trl-1.16.0-py3-none-any.whl
get_templates = -test -e $(TEMPLATES) || $(1)/pip download --quiet --no-deps --dest build/templates trl==1.16.0

templates: install
	$(call get_templates,$(BIN))

test: install
	$(call get_templates,$(BIN))
	$(BIN)/pytest --numprocesses auto -m "not slow"

test-core: $(CORE_VENV)/.core
	$(call get_templates,$(CORE_VENV)/bin)
	$(CORE_VENV)/bin/pytest --numprocesses auto -m "not slow" tests/marft packages/marft/src

$(CORE_VENV)/.core: packages/marft/pyproject.toml constraints.txt
	test -x $(CORE_VENV)/bin/python || $(PYTHON) -m venv $(CORE_VENV)
	$(CORE_VENV)/bin/pip install --quiet --no-compile --constraint constraints.txt --editable "packages/marft[dev]"
	touch $@

test-slow: install
	$(call get_templates,$(BIN))
	$(BIN)/pytest --numprocesses auto --dist loadfile -m slow tests

test-vllm: install
	$(BIN)/marft engine install vllm $(if $(shell command -v nvidia-smi),,--cpu)
	$(BIN)/python benchmarks/vllm_tests.py

gpu: install
	$(BIN)/python benchmarks/gpu.py

wheels: install
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist packages/*

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open build/site/index.html"

mutants: install
	$(BIN)/python tools/mutants/run.py $(MUTANTS)

mutants-sample: install
	$(BIN)/python tools/mutants/run.py --sample

golden: install
	$(BIN)/python tools/golden/golden.py

golden-short: install
	$(BIN)/python tools/golden/golden.py --short

nightly: install
	HYPOTHESIS_PROFILE=nightly MARFT_FUZZ=10000 $(BIN)/pytest --numprocesses auto
	$(BIN)/python tools/mutants/run.py --remember
	$(BIN)/python tools/golden/golden.py
	for study in throughput concurrency chains algorithms paper large_teams team_game organizations tools environments \
		self_play world_ablations harder environment_steps long_episodes; do \
		$(BIN)/python benchmarks/$$study.py || exit 1; \
	done
	$(BIN)/python benchmarks/frameworks.py
	$(BIN)/python benchmarks/frameworks.py --two-steps
	$(BIN)/python benchmarks/faults.py --kills 40 --steps 60
	@echo "Results lie in benchmarks/results and tools/mutants/killers.json: look at what has changed, and commit it"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

check: lint types test

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(CORE_VENV) runs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
