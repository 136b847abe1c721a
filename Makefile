.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help install demo test fuzz check fix results speeds reference docs man bench

help: ## show what can be made
	@grep -E '^[a-z]+:.*## ' Makefile | awk -F ':.*## ' '{printf "make %-9s %s\n", $$1, $$2}'

install: .venv/installed ## set up .venv with the tested versions

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch .venv/installed

demo: install ## try the embedded model, train a tiny one, about two minutes
	$(BIN)/dualmoco demo

test: check ## set up, lint, types, tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

fuzz: install ## the tests with mutated files, thousands of them; some minutes
	DUALMOCO_FUZZ=5000 $(BIN)/pytest -n 2 tests/test_fuzz_*.py

check: install ## lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src tests benchmarks

fix: install ## format and repair what can be repaired
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

results: install ## evaluate and compare all systems of docs/results/systems.json; DATA=FOLDER
	$(BIN)/python -m benchmarks.results --data $(or $(DATA),$(DUALMOCO_DATA))

speeds: install ## measure how fast these systems encode, on idle cores; DATA=FOLDER
	$(BIN)/python -m benchmarks.encode embedded --data $(or $(DATA),$(DUALMOCO_DATA)) --out docs/results/speeds.json

reference: install ## write the generated pages and tables of docs/
	PYTHONPATH=tests $(BIN)/python tests/reference.py

docs: install ## build the site into build/site; a broken link is an error
	$(BIN)/zensical build --clean --strict

man: install ## write the manual page build/dualmoco.1
	mkdir -p build
	$(BIN)/argparse-manpage --module dualmoco.cli.main --function build_parser --project-name dualmoco \
		--manual-title "dualmoco manual" --description "cross-lingual sentence encoders" --output build/dualmoco.1

bench: install ## the benchmarks of docs/results/speed-training.md that need no data
	$(BIN)/python -m benchmarks.loss
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.prepare
