# Everything runs in a virtual environment of its own, made on first use. To use an interpreter that has
# the dependencies already (a GPU machine without network, say): make test-gpu PY=python3
PYTHON ?= python3
VENV ?= .venv
ifeq ($(origin PY),undefined)
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
endif

.PHONY: demo test check fix test-gpu bench clean

demo: $(READY)
	$(PY) -m dgen generate --prompt "Tell me a story about a brave fox."

test: $(READY)
	$(PY) -m pytest -n auto --maxprocesses 4 --dist worksteal

check: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

fix: $(READY)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

test-gpu: $(READY)
	$(PY) -m pytest -m gpu

bench: $(READY)
	$(PY) -m dgen bench --canvas 256

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "Setting up $(VENV); torch is large, so this takes a minute or several."
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[triton,dev]'
	touch $@
