PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 4
STEPS ?= 20000
SOAK_SECONDS ?= 3600
# The tests' own bytecode is kept, whatever the shell says: rewriting their asserts takes a worker 5 s.
WITH_BYTECODE := PYTHONDONTWRITEBYTECODE=
RUN_TESTS := $(WITH_BYTECODE) $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal
TRITON ?= 3.6.0 3.7.1 3.8.0 3.9.0
IDENTITY_TRITON ?= 3.6.0 3.9.0
LOWEST_PYTHON ?= 3.10
NEWEST_PYTHON ?= 3.14
PYTHONS ?= 3.10 3.11 3.12 3.13 3.14
# Torch from PyPI demands one version of Triton and CUDA packages; torch for CPUs demands neither.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Torch alone is asked of its index: as an extra one, every package would wait where it is not there.
install_torch = $(if $(TORCH_INDEX),$(1) -m pip install --quiet --retries 0 --timeout 15 --no-deps \
  --index-url $(TORCH_INDEX) torch --constraint $(2) 2> /dev/null || echo "$(TORCH_INDEX) has no torch to install" &&) \
  $(1) -m pip install --quiet torch triton --constraint $(2)
# Test with one Python and one resolution of the dependencies, in an environment named like the target.
define test_with
$(BIN)/uv venv --quiet --clear --python $(1) $(VENV)-$@
$(BIN)/uv pip install --quiet --python $(VENV)-$@/bin/python --resolution $(2) --editable '.[dev]'
$(VENV)-$@/bin/python -m pytest -q -n $(JOBS) --dist worksteal -m "not gpu"
endef
# What runs the demo: the environment of the tests, if it is there already.
DEMO := $(if $(wildcard $(VENV)/.installed),$(VENV),$(VENV)-demo)
UV_COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-header \
  --no-annotate --no-emit-package dejavu-cache --excludes requirements/by-machine.txt --constraint constraints.txt

.PHONY: help demo test check tests slow-list lint style types format coverage gpu-test bench identity store-model soak fleet-start exits fuzz matrix lowest newest lock shipped clean-installs reference pictures docs kit clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

$(VENV)/.installed: pyproject.toml constraints.txt requirements/dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements/dev.txt
	$(call install_torch,$(BIN)/python,constraints.txt)
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	$(BIN)/python -m compileall -q dejavu_cache client service  # processes of the tests write no bytecode
	touch $@

$(VENV)-demo/.installed: pyproject.toml constraints.txt requirements/server.txt
	$(PYTHON) -m venv $(VENV)-demo
	$(VENV)-demo/bin/python -m pip install --quiet --require-hashes --requirement requirements/server.txt
	$(call install_torch,$(VENV)-demo/bin/python,constraints.txt)
	$(VENV)-demo/bin/python -m pip install --quiet numpy --constraint constraints.txt  # of Triton's interpreter
	$(VENV)-demo/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

$(VENV)/.collected: $(VENV)/.installed
	$(WITH_BYTECODE) $(BIN)/python -m pytest -qq --collect-only > $@.log || (cat $@.log; exit 1)
	touch $@

demo: $(DEMO)/.installed  ## one process tunes, others over its folder and over a server benchmark nothing
	$(DEMO)/bin/python examples/demo.py

test: $(VENV)/.installed  ## everything that needs no GPU
	$(BIN)/ruff check .
	$(MAKE) --no-print-directory --jobs 2 tests lint SELECT="not gpu"

check: $(VENV)/.installed  ## size, lint, types and the tests that are not on the list of slow ones
	$(BIN)/ruff check .
	$(BIN)/python tools/check_size.py
	$(MAKE) --no-print-directory --jobs 2 tests lint SELECT="not gpu and not slow"

tests: $(VENV)/.collected
	$(RUN_TESTS) -m "$(SELECT)" --durations 25

slow-list: $(VENV)/.installed  ## measure which tests are slow; on a machine that does nothing else
	$(RUN_TESTS) -m "not gpu" --write-slow-list

lint: style types  ## style, types, layers, names, links and size; `check` runs it beside the tests

style: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/check_prose.py
	$(BIN)/python tools/check_links.py
	$(BIN)/python tools/check_size.py --static

types: $(VENV)/.installed
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed  ## rewrite the code as ruff formats it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

coverage: $(VENV)/.installed  ## the lines and branches that the tests reach, in htmlcov/
	$(BIN)/python -m pytest -m "not gpu" --cov --cov-report=term --cov-report=html

gpu-test:  ## the GPU tests, with this machine's own torch and Triton; faster with PYTEST="-n 12"
	$(PYTHON) -m pytest -m gpu $(PYTEST) tests/gpu

bench: $(VENV)/.installed  ## what can be measured without a GPU, into benchmarks/results
	$(BIN)/python benchmarks/lookup.py
	$(BIN)/python benchmarks/service.py

identity: $(VENV)/.installed  ## launch edited kernels on a pretended GPU with each Triton: a record may answer only equal code
	for version in $(IDENTITY_TRITON); do \
	  $(PYTHON) -m venv $(VENV)-identity-$$version && \
	  echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" > $$($(VENV)-identity-$$version/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/rest.pth && \
	  $(VENV)-identity-$$version/bin/python -m pip install --quiet --no-deps triton==$$version && \
	  $(VENV)-identity-$$version/bin/python benchmarks/identity.py --rounds 3 --attention 30 --times --out benchmarks/results || exit 1; \
	done

store-model: $(VENV)/.installed  ## random calls of every kind of store against a dictionary; STEPS=20000 for each
	STEPS=$(STEPS) $(BIN)/python -m pytest -q -o timeout=0 --hypothesis-profile search tests/stores/test_store_contract.py tests/service/test_store_model.py

soak: $(VENV)/.installed  ## an hour of work and faults on both databases, into benchmarks/results; SOAK_SECONDS=600
	$(BIN)/python benchmarks/soak.py --seconds $(SOAK_SECONDS)
	$(BIN)/uv run --quiet --no-project --with matplotlib python benchmarks/soak_test/report.py

fleet-start: $(VENV)/.installed  ## a fleet's first look-ups at three replicas, into benchmarks/results; on an idle machine
	$(BIN)/python benchmarks/fleet_start.py
	$(BIN)/uv run --quiet --no-project --with matplotlib python benchmarks/fleet_start.py --plot

exits: $(VENV)/.installed  ## how programs end beside a full spool, into benchmarks/results
	$(BIN)/python benchmarks/exits.py

fuzz: $(VENV)/.installed  ## made-up requests to a server, then new examples for all tests that draw some, as of changed files and answers
	FUZZ_EXAMPLES=300 $(BIN)/python -m pytest -q -o timeout=0 tests/service/test_fuzz.py
	PYTHONHASHSEED=random $(BIN)/python -m pytest -q -o timeout=0 -n $(JOBS) --hypothesis-profile search $$(grep -rl --include='test_*.py' '^@given' tests)

matrix: $(VENV)/.installed  ## the library's tests on each Triton that is supported
	for version in $(TRITON); do \
	  $(PYTHON) -m venv $(VENV)-$$version && \
	  grep -v '^triton' constraints.txt > $(VENV)-$$version/constraints.txt && echo "triton==$$version" >> $(VENV)-$$version/constraints.txt && \
	  { $(call install_torch,$(VENV)-$$version/bin/python,$(VENV)-$$version/constraints.txt); } && \
	  $(VENV)-$$version/bin/python -m pip install --quiet --constraint $(VENV)-$$version/constraints.txt --editable '.[dev]' && \
	  $(VENV)-$$version/bin/python -m pytest -m "not gpu" --ignore tests/service --ignore tests/client || exit 1; \
	done

lowest: $(VENV)/.installed  ## the tests with the lowest versions that pyproject.toml allows, Python 3.10 and CUDA packages included
	$(call test_with,$(LOWEST_PYTHON),lowest-direct)

newest: $(VENV)/.installed  ## the tests with the newest versions that there are, Python 3.14 and CUDA packages included
	$(call test_with,$(NEWEST_PYTHON),highest)

lock: $(VENV)/.installed  ## pin development, documentation and the server's image anew, with hashes
	$(UV_COMPILE) pyproject.toml --upgrade --extra dev --output-file requirements/dev.txt
	$(UV_COMPILE) pyproject.toml --upgrade --extra server --output-file requirements/server.txt
	$(UV_COMPILE) requirements/build.in --upgrade --output-file requirements/build.txt
	$(UV_COMPILE) pyproject.toml --upgrade --extra docs --output-file requirements/docs.txt

clean-installs: $(VENV)/.installed  ## install and try the wheel and the sdist on each of PYTHONS, into benchmarks/results
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tools/clean_installs.py --python $(PYTHONS)

shipped:  ## sweep attention on this GPU, and write the records into the package; SHIPPED=--dry-run
	$(PYTHON) tools/ship_attention_records.py $(SHIPPED)

$(VENV)-docs/.installed: pyproject.toml requirements/docs.txt
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --require-hashes --requirement requirements/docs.txt
	$(VENV)-docs/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

reference: $(VENV)/.installed  ## write the reference of commands, settings and routes from the code
	$(BIN)/python tools/write_reference.py

pictures: $(VENV)/.installed  ## take the documentation's pictures of the server's pages; needs chromium
	$(BIN)/python tools/page_pictures.py

docs: $(VENV)-docs/.installed  ## the site, into site/; a warning is an error
	$(VENV)-docs/bin/mkdocs build --strict --clean

kit: $(VENV)/.installed  ## run the proxies, Prometheus and the workflow of deploy/ against real servers
	$(BIN)/python tools/check_kit.py
	$(BIN)/uv tool run --quiet --from kubernetes-validate kubernetes-validate --strict $(filter-out %/kustomization.yaml %/service-monitor.yaml,$(wildcard deploy/kubernetes/*.yaml))
	$(BIN)/uv tool run --quiet check-jsonschema --builtin-schema vendor.github-workflows deploy/github/tuning.yml .github/workflows/*.yml

clean:  ## remove the environments and what the demo made
	rm -rf $(VENV) $(VENV)-* .demo site htmlcov .coverage*
