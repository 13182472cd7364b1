# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
#   PYTHON=python3.12 make test      another Python, 3.10 to 3.13 (it makes .venv; `make clean` first)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test hostile lint docs bench env demo-env clean

# Two real networks become INT8 and FP8 engines; files go to demo-out/.
demo: demo-env
	$(BIN)/python examples/demo.py --out demo-out

test: lint
	$(BIN)/python -m pytest -n auto --dist loadfile

# 50,000 damaged files and odd options, for a night; `make test` runs 2,000 of them.
hostile: env
	FUSEQ_HOSTILE_CASES=50000 $(BIN)/python -m pytest -n auto tests/hostile

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	  echo $(BIN)/mypy && $(BIN)/mypy; \
	else echo 'mypy: not on Python 3.10, whose last NumPy has no complete types'; fi

# The documentation site, into site/.
docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Every other tool on the same models, into bench-out/ and docs/benchmarks-tools.md; hours, goes on where it stopped.
#   make bench ONLY='*/resnet50-int8*'        rows by tool/model-format-variant
#   make bench PYTHONS='nncf=ENV/bin/python'  environments that exist
ONLY ?= *
PAGE ?= docs/benchmarks-tools.md
bench: $(VENV)/.bench
	$(BIN)/python benchmarks/bench.py bench-out --only '$(ONLY)' --page '$(PAGE)' \
	  $(addprefix --python ,$(PYTHONS)) $(BENCH_OPTIONS)

env: $(VENV)/.test

demo-env: $(VENV)/.demo

# --group, which installs a dependency group of pyproject.toml, is in pip since 25.1.
$(VENV)/.pip:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade 'pip>=25.1'
	touch $@

$(VENV)/.test: $(VENV)/.pip pyproject.toml constraints.txt
	$(PIP) --constraint constraints.txt --group dev --editable '.[rtx,images,report,torch]'
	touch $@

$(VENV)/.demo: $(VENV)/.pip pyproject.toml constraints.txt
	@echo 'Installing into $(VENV): PyTorch, TensorRT-RTX, ONNX Runtime and the two networks.'
	$(PIP) --constraint constraints.txt --group demo --editable '.[rtx,images]'
	touch $@

$(VENV)/.bench: $(VENV)/.pip pyproject.toml constraints.txt
	$(PIP) --constraint constraints.txt --editable '.[rtx]'
	touch $@

clean:
	rm -rf $(VENV) demo-out bench-out site
