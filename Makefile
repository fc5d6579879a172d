PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TRITON ?= 3.6.0
JOBS ?= 4
RUN_TESTS := $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

.PHONY: demo test check slow-list lint gpu-test bench matrix clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/.installed  ## one process tunes, others over its folder and over a server benchmark nothing
	$(BIN)/python examples/demo.py

test: lint  ## everything that needs no GPU
	$(RUN_TESTS) -m "not gpu" --durations=25

check: lint  ## lint, types and the tests that are not on the list of slow ones
	$(RUN_TESTS) -m "not gpu and not slow"

slow-list: $(VENV)/.installed  ## measure which tests are slow; on a machine that does nothing else
	$(RUN_TESTS) -m "not gpu" --write-slow-list

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_prose.py

gpu-test:  ## on a machine with a GPU, with that machine's own torch and Triton; faster with pytest-xdist: PYTEST="-n 12"
	$(PYTHON) -m pytest -m gpu $(PYTEST) tests/gpu

bench: $(VENV)/.installed  ## what can be measured without a GPU; results go to benchmarks/results
	$(BIN)/python benchmarks/lookup.py
	$(BIN)/python benchmarks/service.py

matrix: $(VENV)/.installed  ## the library's suite on the oldest, the middle and the newest Triton
	for version in 3.4.0 3.6.0 3.9.0; do \
	  $(PYTHON) -m venv $(VENV)-$$version && \
	  grep -v '^triton' constraints.txt > $(VENV)-$$version/constraints.txt && echo "triton==$$version" >> $(VENV)-$$version/constraints.txt && \
	  $(VENV)-$$version/bin/python -m pip install --quiet --constraint $(VENV)-$$version/constraints.txt --editable '.[dev]' && \
	  $(VENV)-$$version/bin/python -m pytest -m "not gpu" --ignore tests/service --ignore tests/client || exit 1; \
	done

clean:
	rm -rf $(VENV) $(VENV)-* .demo
