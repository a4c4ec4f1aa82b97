# Everything a developer types. `make help` lists it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN := .venv/bin
ROWS ?= 1000000
NODE := simulated
ARGS ?=
SHARD ?=
SHARDS := 5
# Fails where SHARD is no part of the slow tests; empty otherwise.
CHECK_SHARD = $(if $(filter-out $(shell seq $(SHARDS)),$(SHARD))$(word 2,$(SHARD)),$(error SHARD: must be 1 to $(SHARDS), but is '$(SHARD)'))
# Hundreds of processes start below a run of the tests: they must not compile all that they import.
export PYTHONDONTWRITEBYTECODE :=
# Builds the tools that are missing, and runs the tests meanwhile.
TESTS = $(BIN)/python -m tools.build_tools --during \
  $(BIN)/python -m pytest -n 2 --no-loadscope-reorder --durations-path tests/slow_durations.json

.PHONY: bench-autoscaling bench-deduplication bench-operator bench-overlap bench-plant bench-plant-pods bench-read-ahead bench-scaling bench-shared-memory bench-wire bench-table-size help setup lock sbom test-tools run sample-data bench chart dashboards test test-nightly test-slow test-unit lint lint-types format crd clean
.PHONY: cluster-up cluster-down cluster-status cluster-kubeconfig images

##@ Start here

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: setup sample-data ## Make the sample data, train on it and write build/quickstart/report.html
	$(BIN)/lastmile run -f deploy/samples/quickstart.yaml --output build/quickstart

test: setup ## Run the tests that each change must pass, in two processes (ARGS="-k word")
	@$(TESTS) -m "not slow" $(ARGS)

test-slow: setup ## Run the slow tests: rarer faults, benchmarks, minutes in pods (SHARD=1 to 5: a fifth of them)
	@$(CHECK_SHARD)$(TESTS) tests/contract tests/integration tests/e2e -m "slow and not alone" $(if $(SHARD),--splits $(SHARDS) --group $(SHARD) --splitting-algorithm least_duration) $(ARGS)

test-nightly: test ## Run all tests, ten times the examples, 10,000 bad specs, 2,000 mutated files, an operator killed 1,000 times (LASTMILE_KILLS)
	@$(MAKE) --no-print-directory test-slow
	LASTMILE_EXAMPLES=$${LASTMILE_EXAMPLES:-10} $(BIN)/python -m pytest -n 2 --timeout 3600 -m hypothesis tests/unit tests/contract tests/integration/cluster
	LASTMILE_BAD_SPECS=$${LASTMILE_BAD_SPECS:-10000} $(BIN)/python -m pytest -n 2 tests/unit/dataset_operator/test_ten_thousand_bad_specs.py
	LASTMILE_MUTATIONS=$${LASTMILE_MUTATIONS:-2000} $(BIN)/python -m pytest -m slow tests/integration/test_mutated_files.py
	LASTMILE_KILLS=$${LASTMILE_KILLS:-1000} LASTMILE_RESULTS=$${LASTMILE_RESULTS:-build} $(BIN)/python -m pytest -s tests/integration/cluster/test_kills.py
	LASTMILE_RESULTS=$${LASTMILE_RESULTS:-build} $(BIN)/python -m pytest -m alone tests/e2e

##@ Set-up

setup: ## Install what the locks pin into .venv (TORCH_INDEX_URL: where to take torch from)
	@tools/setup.sh

test-tools: setup ## Get what the integration tests talk to: an S3 server, a browser, Prometheus, a Kubernetes, images
	@$(BIN)/python tools/build_tools.py

lock: setup ## Renew the locks after a change of pyproject.toml (ARGS=--upgrade: newest versions)
	$(BIN)/python tools/lock.py $(ARGS)

sbom: setup ## Write the wheel's bill of materials, sbom/lastmile.spdx.json; make lock does it too
	$(BIN)/python -m tools.sbom

##@ A Kubernetes on this machine

cluster-up: setup ## Start one in build/cluster; its pods are played (NODE=full: real, needs root)
	@$(BIN)/python -m tools.cluster up --node $(NODE)

cluster-down: setup ## Remove it, and what killed test runs left behind
	@$(BIN)/python -m tools.cluster down

cluster-status: ## List its processes and nodes
	@$(BIN)/python -m tools.cluster status

cluster-kubeconfig: ## Print the path of its kubeconfig
	@$(BIN)/python -m tools.cluster kubeconfig

##@ Container images

images: setup ## Build both in ~/.cache/lastmile/images; needs root (ARGS="operator --archives FOLDER": one, to a file)
	@$(BIN)/python -m tools.images $(ARGS)

##@ Work

test-unit: setup ## Run the unit tests in two processes: no network, no Ray
	$(BIN)/python -m pytest -n 2 --no-loadscope-reorder tests/unit $(ARGS)

lint: setup lint-types ## Check style, types, imports and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell

lint-types: setup ## Check the types alone
	$(BIN)/mypy
	$(BIN)/mypy tools

format: setup ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

chart: setup ## Bring the chart's copies, its schema of settings and its README up to date
	$(BIN)/python -m tools.chart

crd: setup ## Write crds/datasetexperiments.yaml from the models of the manifest, and make chart
	$(BIN)/python -m tools.crd

dashboards: setup ## Write deploy/grafana from tools/dashboards
	$(BIN)/python -m tools.dashboards

sample-data: setup ## Make the sample data in build/data (ROWS=1000000)
	$(BIN)/lastmile sample-data --rows $(ROWS) --output build/data

bench: setup ## Measure what the README claims about loading data (ARGS: the benchmark's options)
	$(BIN)/python -m benchmarks.dataloading $(ARGS)

bench-deduplication: setup ## Measure what it gains to keep a request's columns once
	$(BIN)/python -m benchmarks.deduplication $(ARGS)

bench-overlap: setup ## Measure whether loading hides behind training, and training behind loading
	$(BIN)/python -m benchmarks.overlap $(ARGS)

bench-autoscaling: setup ## Simulate every law of scaling over every scenario (ARGS: the benchmark's options)
	$(BIN)/python -m benchmarks.autoscaling $(ARGS)

bench-operator: setup test-tools ## Measure the operator with 1,000 experiments, and beside 400 silent heads (ARGS: the benchmark's options)
	$(BIN)/python -m benchmarks.operator $(ARGS)

bench-plant: setup ## Compare the simulated plant with real processes under the same law
	$(BIN)/python -m benchmarks.plant $(ARGS)

bench-plant-pods: setup test-tools ## The same with real pods under the operator; needs root
	LASTMILE_RESULTS=benchmarks/results $(BIN)/python -m pytest -m alone -n 0 -s tests/e2e $(ARGS)

bench-read-ahead: setup ## Measure what it gains to read ahead from a store
	$(BIN)/python -m benchmarks.read_ahead $(ARGS)

bench-shared-memory: setup ## Measure what it gains that a reader shares memory with its trainer
	$(BIN)/python -m benchmarks.shared_memory $(ARGS)

bench-scaling: setup ## Measure what 1 to 8 data-worker nodes bring to a trainer (ARGS: the benchmark's options)
	$(BIN)/python -m benchmarks.scaling $(ARGS)

bench-wire: setup ## Measure what batches weigh on their way, and what sending and taking them costs
	$(BIN)/python -m benchmarks.wire $(ARGS)

bench-table-size: setup ## Measure whether a larger table starts later or needs more memory
	$(BIN)/python -m benchmarks.table_size $(ARGS)

clean: ## Delete what was made here, .venv excepted
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
