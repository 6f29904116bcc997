PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SECONDS ?= 600
CHROMIUM := apt-get install -y --no-install-recommends chromium

# What computes with floats: losses, methods, condensation, codecs and what they stand on
NUMERIC := tests/methods tests/condense tests/codecs tests/backbones tests/data/test_augment.py \
    tests/memory/test_exemplars.py $(addprefix tests/learn/test_,loop.py cflat.py muon.py front.py)

.PHONY: demo test test-numeric test-portable fuzz check browser tables picture overhead clean

demo: $(STAMP)  ## Learn the embedded digits with three methods; a table, pictures, and a page to open in a browser
	$(BIN)/protocore demo

test: $(STAMP) check  ## Lint, types, import contracts, then every test
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n 2

test-numeric: $(STAMP)  ## The tests that compute, without the vector instructions of newer processors
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE \
	    $(BIN)/python -m pytest -n 2 $(NUMERIC)

test-portable: $(STAMP)  ## Every test under every instruction set that the processor has, with 1 and 2 threads
	$(BIN)/python benchmarks/portable.py $(TESTS)

fuzz: $(STAMP)  ## Damaged files into every reader, for SECONDS; guided by coverage where atheris installs
	@$(BIN)/python -c 'import atheris' 2>/dev/null || \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]' || \
	    echo "atheris does not install here: hypothesis takes its place"
	PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(SECONDS) $(TARGETS)

check: $(STAMP)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/pyright
	$(BIN)/lint-imports

browser:  ## Debian's chromium, in which the page of `protocore report` is tested; its tests skip where it is missing
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    timeout 300 sh -c '$(CHROMIUM) || { apt-get update && $(CHROMIUM); }' >/dev/null 2>&1; } || \
	    echo "no chromium here: the tests of the page in a browser are left out"

tables: $(STAMP)  ## Write the tables of README.md and docs/ from the stored results
	$(BIN)/python benchmarks/tables.py

picture: $(STAMP) browser  ## README's picture: the report of the runs at full size, as a browser shows it
	$(BIN)/python benchmarks/picture.py

overhead: $(STAMP)  ## Our loop's images per second against a bare PyTorch loop
	$(BIN)/python benchmarks/overhead.py

# pip compiles byte code as it installs, which halves the time of `import torch` later on
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) runs
