# The two commands of the README: `make run` and `make test`.
# Both need nothing but Python 3.11+ with venv. The tests also need Chromium, which `make test`
# installs where there is none (on Debian, as root or by sudo).
PYTHON ?= python3
VENV   ?= .venv
OUT    ?= out
BIN    := $(VENV)/bin
# An environment from before the package was renamed has it under its old name, too.
RENAMED = $(BIN)/python -m pip uninstall -qqq --yes --disable-pip-version-check flamma
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# With LOCKED=1, as in CI, pip installs only files whose hashes are in requirements.lock: all
# packages at once, since pip cannot check the hash of a folder such as this one.
LOCKED_PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
ifdef LOCKED
install = $(LOCKED_PIP) --require-hashes -r requirements.lock && $(LOCKED_PIP) --no-deps --no-build-isolation -e .
else
install = $(PIP) -e '.[$(strip $(1))]'
endif
comma := ,

.PHONY: run test installed coverage fuzz docs lock sbom chromium clean

# Ends by saying whether every run has the bits of the published table; exit code 1 is that some
# have not, which the training with torch does not promise.
run: $(VENV)/.installed
	$(BIN)/flamma compare --out $(OUT)/quick --check docs/results/quick.json || [ $$? = 1 ]

# More workers than cores, since many tests wait for processes; and compiled modules are kept whatever
# the environment says, since each of those processes would compile them anew.
test: $(VENV)/.installed-dev chromium
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest -n 4 --dist worksteal

# What a newcomer has: a wheel that is built from the source distribution, in two fresh environments,
# alone and with the report, away from this checkout. What setuptools has left is removed, or the wheel
# would have it. Modules are compiled when they are first imported, since pip takes four times as long
# to compile all of them.
INSTALLED   := build/installed
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
installed:
	rm -rf $(INSTALLED) build/lib* build/bdist*
	for name in build core report; do $(PYTHON) -m venv $(INSTALLED)/$$name || exit 1; done
	$(INSTALLED)/build/bin/python $(PIP_INSTALL) build setuptools
	$(INSTALLED)/build/bin/python -m build --quiet --no-isolation --outdir $(INSTALLED)
	env -u PYTHONDONTWRITEBYTECODE $(MAKE) --no-print-directory -j 2 \
	  $(INSTALLED)/core.checked $(INSTALLED)/report.checked

$(INSTALLED)/core.checked:
	$(INSTALLED)/core/bin/python $(PIP_INSTALL) "$$(ls $(INSTALLED)/*.whl)"
	$(INSTALLED)/core/bin/python tests/installed.py

$(INSTALLED)/report.checked:
	$(INSTALLED)/report/bin/python $(PIP_INSTALL) "$$(ls $(INSTALLED)/*.whl)[report]"
	$(INSTALLED)/report/bin/python tests/installed.py report

coverage: $(VENV)/.installed-dev chromium
	$(BIN)/pytest -n 2 --cov --cov-report=term:skip-covered

# Seconds for each fuzzer; SEED=N tries the same inputs again.
SECONDS ?= 60
fuzz: $(VENV)/.installed-dev
	PYTHONPATH=tests $(BIN)/python -m fuzzing --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# The documentation as a site in site/: open site/index.html, no server and no network needed.
docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --clean --site-dir site

# The hashes of all files of the versions in constraints.txt, for every platform, from the index:
# all packages; those of a wheel that is tried and listed in the SBOM; and what builds releases.
UV_LOCK = $(BIN)/uv pip compile --quiet --no-config --universal --python-version 3.11.5 \
  --generate-hashes --no-header --no-annotate -c constraints.txt
lock: $(VENV)/.installed-dev
	$(UV_LOCK) --all-extras pyproject.toml -o requirements.lock
	$(UV_LOCK) --extra flower --extra report pyproject.toml -o .ci/shipped.lock
	$(UV_LOCK) .ci/tools.txt -o .ci/tools.lock

# What a release was tested with, as CycloneDX: the packages of an environment of its own that has
# FLamma with Flower and the report.
SBOM := build/sbom
SBOM_PIP := bin/pip install --quiet --disable-pip-version-check
sbom:
	rm -rf $(SBOM) && mkdir -p dist
	$(PYTHON) -m venv $(SBOM)/shipped && $(PYTHON) -m venv $(SBOM)/tool
	$(SBOM)/shipped/$(SBOM_PIP) --require-hashes -r .ci/shipped.lock
	$(SBOM)/shipped/$(SBOM_PIP) --no-deps --no-build-isolation .
	$(SBOM)/tool/$(SBOM_PIP) --require-hashes -r .ci/tools.lock
	version=$$($(SBOM)/shipped/bin/python -c 'import flamma; print(flamma.__version__)') && \
	  sed "s/^dynamic = .*/version = \"$$version\"/" pyproject.toml > $(SBOM)/pyproject.toml
	$(SBOM)/tool/bin/cyclonedx-py environment --pyproject $(SBOM)/pyproject.toml --output-reproducible \
	  --output-file dist/flamma_fl.cdx.json $(SBOM)/shipped

# One stamp per set of packages, renewed when the requirements change.
$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "FLamma needs Python 3.11 or newer: try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@$(RENAMED)
	$(call install,report)
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@$(RENAMED)
	$(call install,report$(comma)dev)
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(call install,docs)
	@touch $@

# The report is tested in a real browser, which is installed only where there is none.
chromium:
	@command -v chromium || command -v chromium-browser || command -v google-chrome || { \
	  root=$$([ $$(id -u) = 0 ] || echo sudo -n); \
	  $$root apt-get update -qq && $$root apt-get install -qq -y --no-install-recommends chromium; \
	} || { echo 'make: the tests of the report need Chromium: install it, then make test.'; exit 1; }

clean:
	rm -rf $(VENV) $(OUT) build dist site src/*.egg-info
