# make test, lint, demo … each sets up .venv from constraints.txt first, when it is missing or stale.
PYTHON ?= python3
RUN := .venv/bin
# Small tensors: one thread a process is faster than all threads fighting for the cores.
TEST := OMP_NUM_THREADS=1 $(RUN)/python -m pytest
JOBS ?= 2
# Each process takes a stretch of the tests and then from the others' ends: what a file trains is trained once.
SHARED = -n $(JOBS) --dist worksteal
# make fuzz: how many random programs, from which seed, on which backend (or c), with our C kernels on or off
PROGRAMS ?= 1000
SEED ?= 0
TARGET ?= onednn
KERNELS ?= on

.PHONY: help demo test test-full fuzz golden mutants lint format bench vendor wheel docs clean

help:
	@echo "make demo       two studies on embedded data, four methods, float to 2 bits; pages in runs/demo"
	@echo "make test       the tests, without the long matrices (JOBS=$(JOBS) processes)"
	@echo "make test-full  all tests; notes what the slow ones passed with (tests/slow_passed.json)"
	@echo "make fuzz       random programs on a backend (PROGRAMS=$(PROGRAMS) TARGET=$(TARGET) KERNELS=$(KERNELS))"
	@echo "make golden     all golden answers against what is answered now, bit by bit (tests/golden)"
	@echo "make mutants    what of the source no test watches (MODULES, OPERATORS, SAMPLE, LIKELY: tests/mutants/run.py)"
	@echo "make lint       ruff, pyright, import-linter"
	@echo "make format     let ruff rewrite the sources"
	@echo "make bench      the benchmarks, one after the other"
	@echo "make docs       the documentation, into site/"
	@echo "make vendor     fetch ONNX Runtime Web, which pages of 'qbayes export' carry (needs npm)"
	@echo "make wheel      the package with ONNX Runtime Web in it, into dist/"
	@echo "make clean      remove caches and builds; keeps .venv, runs and data"

# An environment that was made by hand is completed, not replaced.
.venv/.installed: pyproject.toml constraints.txt
	test -x $(RUN)/python || $(PYTHON) -m venv .venv
	$(RUN)/python -m pip install -q -c constraints.txt -e ".[dev,report]"
	@touch $@

# ONNX Runtime Web for exported pages. Without npm or a network all else works: what needs it is skipped, or says so.
VENDORED := src/qbayes/export/web/runtime/ort-wasm-simd-threaded.wasm
$(VENDORED): src/qbayes/export/web/runtime_files.py | .venv/.installed
	@$(RUN)/python -m qbayes.cli.vendor_web && touch $@ || echo "pages for the browser cannot be exported or tested here"

# What .ci/run adds. bayesian-torch asks for torchvision and tensorboard, which nothing here uses.
.venv/.ci: .venv/.installed
	$(RUN)/python -m pip install -q -c constraints.txt -e ".[ci]"
	$(RUN)/python -m pip install -q -c constraints.txt --no-deps bayesian-torch
	@touch $@

.venv/.docs: .venv/.installed
	$(RUN)/python -m pip install -q -c constraints.txt -e ".[docs]"
	@touch $@

demo: .venv/.installed $(VENDORED)
	$(RUN)/python -m qbayes.cli.demo --out runs/demo

test: .venv/.installed $(VENDORED)
	$(TEST) $(SHARED)

test-full: .venv/.installed $(VENDORED)
	QBAYES_SLOW=all $(TEST) $(SHARED)

fuzz: .venv/.installed
	OMP_NUM_THREADS=1 QBAYES_INTEGER_KERNELS=$(KERNELS) PYTHONPATH=tests $(RUN)/python -m fuzz \
		--programs $(PROGRAMS) --seed $(SEED) --target $(TARGET) --processes $(JOBS)

# What was answered before the sources were moved about (python -m golden --record writes it).
golden: .venv/.installed
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(RUN)/python -m golden --compare --processes $(JOBS)

# Mutations of the source, JOBS at a time, each in a copy: none may pass unnoticed.
mutants: .venv/.installed
	PYTHONPATH=tests $(RUN)/python -m mutants.run --jobs $(JOBS) $(if $(MODULES),--modules $(foreach one,$(MODULES),'$(one)')) \
		$(if $(OPERATORS),--operators) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(LIKELY),--likely) $(if $(FRESH),--fresh)

lint: .venv/.installed
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/pyright
	$(RUN)/lint-imports --no-logo

format: .venv/.installed
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .

bench: .venv/.installed
	@set -e; found=no; for file in benchmarks/*.py; do \
		[ -e "$$file" ] || continue; found=yes; echo "== $$file"; $(RUN)/python "$$file"; \
	done; [ $$found = yes ] || { echo "benchmarks/ holds no benchmark"; exit 1; }

# The variable silences an advertisement of the theme's successor.
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict --quiet
	@echo "the documentation is in site/index.html"

vendor: .venv/.installed
	$(RUN)/python -m qbayes.cli.vendor_web

wheel: vendor
	$(RUN)/python -m pip wheel -q --no-deps -w dist .

clean:
	rm -rf build dist site .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
