# All commands of a developer. `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN := .venv/bin
ROWS ?= 1000000
NODE := simulated
ARGS ?=
SHARD ?=
SHARDS := 5
# An error if SHARD is not a shard of the slow tests; empty otherwise.
CHECK_SHARD = $(if $(filter-out $(shell seq $(SHARDS)),$(SHARD))$(word 2,$(SHARD)),$(error SHARD: must be 1 to $(SHARDS), but is '$(SHARD)'))
# A test run starts hundreds of processes, which must not compile all their imports again.
export PYTHONDONTWRITEBYTECODE :=
# Build missing tools while the tests run.
TESTS = $(BIN)/python -m tools.build_tools --during \
  $(BIN)/python -m pytest -n 2 --no-loadscope-reorder --durations-path tests/slow_durations.json

.PHONY: bench bench-autoscaling bench-calibration bench-gpu bench-gpu-pack bench-iceberg bench-operator bench-overlap bench-pairs bench-scaling bench-scoring bench-simulator bench-start chart clean crd dist format help lint lint-types lock run run-iceberg run-scoring sample-data sbom setup steps test test-nightly test-slow test-tools test-unit
.PHONY: cluster-up cluster-down cluster-status cluster-kubeconfig images

##@ Start here

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: setup sample-data ## Make the sample data, train on it and write build/quickstart/report.html
	$(BIN)/lastmile run -f deploy/samples/quickstart.yaml
	@ln -sfn latest/report.html build/quickstart/report.html

run-iceberg: setup ## The same from Iceberg tables, which are joined by bucket; writes build/iceberg/report.html
	$(BIN)/lastmile sample-data --iceberg --rows $(ROWS) --output build/lake
	$(BIN)/lastmile run -f deploy/samples/iceberg.yaml
	@ln -sfn latest/report.html build/iceberg/report.html

run-scoring: run ## Score the sample data with the model that `make run` trains; writes build/scoring/report.html
	$(BIN)/lastmile run -f deploy/samples/scoring.yaml
	@ln -sfn latest/report.html build/scoring/report.html

test: setup ## Run the tests that each change must pass, in two processes (ARGS="-k word")
	@$(TESTS) -m "not slow" $(ARGS)

test-slow: setup ## Run the slow tests: rarer faults, benchmarks, long runs in pods (SHARD=1 to 5: a fifth of them)
	@$(CHECK_SHARD)$(TESTS) tests/contract tests/integration tests/e2e -m "slow and not alone" $(if $(SHARD),--splits $(SHARDS) --group $(SHARD) --splitting-algorithm least_duration) $(ARGS)
	$(if $(SHARD),,@$(TESTS) tests/unit -m slow $(ARGS))

test-nightly: test ## Run all tests, ten times the examples, 10,000 bad specs, 2,000 mutated files, an operator killed 1,000 times (LASTMILE_KILLS)
	@$(MAKE) --no-print-directory test-slow
	LASTMILE_EXAMPLES=$${LASTMILE_EXAMPLES:-10} $(BIN)/python -m pytest -n 2 --timeout 3600 -m hypothesis tests/unit tests/contract tests/integration/cluster
	LASTMILE_BAD_SPECS=$${LASTMILE_BAD_SPECS:-10000} $(BIN)/python -m pytest -n 2 tests/unit/dataset_operator/plan/test_ten_thousand_bad_specs.py
	LASTMILE_MUTATIONS=$${LASTMILE_MUTATIONS:-2000} $(BIN)/python -m pytest -m slow tests/integration/test_mutated_files.py
	LASTMILE_KILLS=$${LASTMILE_KILLS:-1000} LASTMILE_RESULTS=$${LASTMILE_RESULTS:-build} $(BIN)/python -m pytest -s tests/integration/cluster/faults/test_operator_kills.py
	LASTMILE_RESULTS=$${LASTMILE_RESULTS:-build} $(BIN)/python -m pytest -m alone tests/e2e

##@ Set-up

setup: ## Install the pinned packages into .venv (TORCH_INDEX_URL: another index for torch)
	@tools/setup.sh

test-tools: setup ## Build or install the tools of the integration tests: an S3 server, a browser, Prometheus, a Kubernetes, images
	@$(BIN)/python tools/build_tools.py

lock: setup ## Update the locks after a change of pyproject.toml (ARGS=--upgrade: newest versions)
	$(BIN)/python tools/lock.py $(ARGS)

sbom: setup ## Write the wheel's bill of materials, sbom/lastmile.spdx.json; make lock does it too
	$(BIN)/python -m tools.sbom

dist: setup ## Build the wheel and the sdist in dist, and check them
	rm -rf dist
	$(BIN)/python -m hatchling build
	$(BIN)/twine check --strict dist/*

##@ A Kubernetes on this machine

cluster-up: setup ## Start one in build/cluster with simulated pods (NODE=full: real pods, needs root)
	@$(BIN)/python -m tools.cluster up --node $(NODE)

cluster-down: setup ## Remove it, and the leftovers of killed test runs
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

lint-types: setup ## Check only the types
	$(BIN)/mypy
	$(BIN)/mypy tools benchmarks

format: setup ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

chart: setup ## Write the chart's dashboards, schema of settings and README
	$(BIN)/python -m tools.chart

crd: setup ## Write crds/datasetexperiments.yaml from the models of the manifest, and make chart
	$(BIN)/python -m tools.crd
	$(BIN)/python -m tools.chart

steps: setup ## Write the fluent API's methods, docs/steps.md and the tables of docs/manifest.md from the models
	$(BIN)/python -m tools.steps

sample-data: setup ## Make the sample data in build/data (ROWS=1000000)
	$(BIN)/lastmile sample-data --rows $(ROWS) --output build/data

bench: setup ## Measure the README's claims about loading data (ARGS: the benchmark's options)
	$(BIN)/python -m benchmarks.dataloading $(ARGS)

bench-gpu: setup ## Train on this machine's GPU with Pipeline.loader and a DataLoader (ARGS: the benchmark's options)
	$(BIN)/python -m benchmarks.gpu $(ARGS)

bench-gpu-pack: setup ## Pack bench-gpu and tests/gpu with their wheels, for a machine with a GPU and no network
	$(BIN)/python -m benchmarks.gpu.pack

bench-iceberg: setup build/iceberg-peers ## Compare reading, joining and writing Iceberg tables with other engines (ARGS: the benchmark's options)
	$(BIN)/python -m benchmarks.iceberg $(ARGS)

# Spark is too large for the lock, 450 MB. Without it, its cell says "not measured".
build/iceberg-peers: benchmarks/iceberg/peers.txt
	-$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $@ --requirement $< && touch $@

bench-overlap: setup ## Measure if loading overlaps with training
	$(BIN)/python -m benchmarks.overlap $(ARGS)

bench-pairs: setup ## Compare the speed and memory of two commits (ARGS="--base COMMIT"), or of the loader and the feed
	$(BIN)/python -m benchmarks.pairs $(ARGS)

bench-autoscaling: setup ## Simulate autoscaling policies in every scenario (ARGS: the benchmark's options)
	$(BIN)/python -m benchmarks.autoscaling $(ARGS)

bench-calibration: setup ## Measure how often lastmile compare errs on equal variants, and what it detects
	$(BIN)/python -m benchmarks.calibration $(ARGS)

bench-operator: setup test-tools ## Measure the operator with 1,000 experiments, compared with a bare client (ARGS: the benchmark's options)
	$(BIN)/python -m benchmarks.operator $(ARGS)

bench-scoring: setup ## Score a table with many columns and several models, compared with Ray Data and a DataLoader
	$(BIN)/python -m benchmarks.scoring $(ARGS)

bench-simulator: setup test-tools ## Compare the autoscaling simulator with real pods under the operator; needs root
	LASTMILE_RESULTS=benchmarks/results $(BIN)/python -m pytest -m alone -n 0 -s tests/e2e $(ARGS)

bench-start: setup ## Measure the time to the plan, the first step and the report
	$(BIN)/python -m benchmarks.start $(ARGS)

bench-scaling: setup ## Measure the throughput of a trainer with 1 to 8 data-worker nodes (ARGS: the benchmark's options)
	$(BIN)/python -m benchmarks.scaling $(ARGS)

clean: ## Delete all generated files except .venv
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
