# Short names for what a developer does all day; `make install` comes first.
PYTHON = .venv/bin/python
export OMP_NUM_THREADS ?= 1

.PHONY: install lint fast test compatibility bench figures docs release

install:  ## .venv with everything that the tests need
	scripts/install.sh --extras dev

lint:  ## style, types, and what may import what
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports --no-logo

fast:  ## the mathematics alone
	$(PYTHON) -m pytest -q -n auto -m "not slow" \
		tests/kernels tests/senses tests/reallocation tests/likelihood tests/output_layers

test:  ## all that CI runs
	scripts/test.sh

compatibility:  ## the plugin beside an untouched fairseq, on older Pythons and torches
	$(PYTHON) -m pytest -q -rs tests/compatibility

bench:  ## figures of the likelihood on this machine; alone on it
	$(PYTHON) scripts/benchmark.py likelihood --quick

figures:  ## results/figures, from the raw files in results
	$(PYTHON) scripts/experiments/figures.py

docs:  ## docs/flags.md, from the code
	$(PYTHON) scripts/flags_page.py

release:  ## sdist, wheel, a small model with senses and its page, in dist/; nothing is uploaded
	scripts/release.sh
