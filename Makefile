# Thin: what each of these does stands in tools/, in build.py or in pyproject.toml.
PYTHON := .venv/bin/python
C_SOURCES = $(shell find bpf tests benchmarks -name '*.[ch]')

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format build bench vmtest wheels fuzz clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## set up what is missing, record a parallel build, and print its report (root)
	tools/setup build
	tools/demo

test: ## set up what is missing, and run the whole test suite (root)
	tools/setup build test
	$(PYTHON) -m pytest $(ARGS)

lint: ## check the form and the types of all sources
	tools/setup build lint
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	clang-format --dry-run -Werror $(C_SOURCES)

format: ## bring all sources into form
	tools/setup build lint
	.venv/bin/ruff check --fix
	.venv/bin/ruff format
	clang-format -i $(C_SOURCES)

build: ## set up what is missing, and build into python/memtrack
	tools/setup build

bench: ## measure against other recorders, and print ratios (root)
	tools/setup build test bench
	$(PYTHON) -m benchmarks $(ARGS)

vmtest: ## run the tests in virtual machines: the whole kernel matrix, or K=6.12 (root)
	tools/setup build test vm
	$(PYTHON) -m tests.vmtest $(K)

wheels: ## build the source distribution and the wheels for x86_64 and aarch64 into dist/
	tools/setup build cross
	tools/wheels aarch64

fuzz: ## feed damaged recordings to the reader for SECONDS=60 seconds
	tools/setup build test
	$(PYTHON) -m tests.fuzz $(or $(SECONDS),60)

clean: ## remove all that was built, and .venv/
	rm -rf .venv build dist python/*.egg-info python/memtrack/_native.abi3.so python/memtrack/rss.bpf.o
