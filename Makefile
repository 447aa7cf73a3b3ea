# Everything a contributor types. `make help` lists it.
# Nothing is installed outside this folder: tools and packages live in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A hash of what decides the set of packages; when it changes, the next target installs again.
STAMP := $(VENV)/.installed-$(shell cksum pyproject.toml | tr ' ' '-' | cut -d- -f1,2)

# The peers' clients and the plots' library, which nothing else needs.
BENCH_VENV := .venv-bench
BENCH_STAMP := $(BENCH_VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup check test demo bench bench-three bench-peers simulate e2e e2e-kind soak docs format clean images

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1|\2/' | while IFS='|' read -r verb text; do printf '%-16s %s\n' "$$verb" "$$text"; done

setup: $(STAMP) ## .venv with everything that developing needs

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Headrace needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo missing)."; \
		echo "Install one, or name it: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
		echo "Python can't make a virtual environment; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@rm -f $(VENV)/.installed-*
	@touch $@

check: $(STAMP) ## lint, format, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Tests mostly wait for processes: more of them than cores.
WORKERS ?= 4

test: $(STAMP) ## the whole test suite (soak tests aside)
	$(BIN)/python -m pytest -n $(WORKERS)

demo: $(STAMP) ## a broker, real data through it, a SIGKILL in the middle, nothing missing
	$(BIN)/headrace demo

bench: $(STAMP) ## throughput and latency of this machine (bench/README.md says how to read it)
	$(BIN)/python bench/run.py

bench-three: $(STAMP) ## what replication, a death, a stop and a copy cost on three brokers
	$(BIN)/python bench/three_brokers.py

bench-peers: $(BENCH_STAMP) ## the same work on Kafka, RabbitMQ streams, Redis and NATS beside it (bench/README.md)
	$(BENCH_VENV)/bin/python bench/peers.py

$(BENCH_STAMP): pyproject.toml bench/requirements.txt
	@test -x $(BENCH_VENV)/bin/python || $(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[broker]' -r bench/requirements.txt
	@touch $@

SEEDS ?= 20000

simulate: $(STAMP) ## whole clusters under every fault, 20,000 seeds on all cores (SEEDS=...), then long property tests
	cd tests && ../$(BIN)/python -m testkit.simulation --seeds $(SEEDS)
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-long} $(BIN)/python -m pytest tests/properties --timeout 3600

e2e: $(STAMP) ## all scenarios in a real Kubernetes: make e2e KUBECONFIG=... IMAGE=...; without, in an emulated one
	HEADRACE_E2E_KUBECONFIG=$(KUBECONFIG) HEADRACE_E2E_IMAGE=$(or $(IMAGE),headrace:dev) \
		$(BIN)/python -m pytest e2e/scenarios -m 'soak or not soak' --durations 0

KIND_CLUSTER ?= headrace-e2e

e2e-kind: $(STAMP) ## all scenarios in a Kubernetes of three nodes in Docker (kind), made and removed
	docker build -t $(or $(IMAGE),headrace:dev) .
	kind create cluster --name $(KIND_CLUSTER) --config e2e/kind.yaml --kubeconfig .kind-kubeconfig --wait 120s
	kind load docker-image $(or $(IMAGE),headrace:dev) --name $(KIND_CLUSTER)
	$(MAKE) e2e KUBECONFIG=$(CURDIR)/.kind-kubeconfig IMAGE=$(or $(IMAGE),headrace:dev); result=$$?; \
		kind delete cluster --name $(KIND_CLUSTER) --kubeconfig .kind-kubeconfig; rm -f .kind-kubeconfig; exit $$result

soak: $(STAMP) ## the long forms: kill after kill under load
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-long} $(BIN)/python -m pytest -m soak --timeout 7200

images: ## container images headrace, -broker, -operator, -cli, -spark (docs/images.md), with docker, podman or buildah
	@sh images/build.sh

docs: $(STAMP) ## write the generated pages of docs/ again
	$(BIN)/python docs/generate.py
	$(BIN)/python charts/generate.py

format: $(STAMP) ## let ruff format and repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv and all caches
	rm -rf $(VENV) $(BENCH_VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist build
