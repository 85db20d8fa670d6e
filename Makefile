# Every target creates .venv and installs what it needs by itself, once (scripts/setup).
#   make list                              the papers
#   make reproduce-radazo scale=smoke      one paper: run, judge, draw
#   make test                              the tests
# Variables on the command line (scale=smoke, seeds=20, launcher=local, publish=true, task.dim=50, ...) are handed on
# to the command; ARGS="..." adds anything that make would take for itself.

.DEFAULT_GOAL := help
.SUFFIXES:
.PHONY: help setup list reproduce-all compare report sync test test-fast lint format lock

PY := .venv/bin/python
JOBS ?= auto
ARGS ?=
PYTEST_ARGS ?=
EXTRAS ?=

# Every variable written on make's command line is handed on, so that a misspelt one is refused by name, except the
# Makefile's own. An environment variable of the same name stays out.
own = ARGS EXTRAS JOBS JUNIT PYTEST_ARGS PYTHON TORCH_INDEX_URL
given = $(foreach name,$(sort $(filter-out $(own) MAKE% -%,$(.VARIABLES))),$(if $(filter command%,$(origin $(name))),'$(name)=$(subst ','\'',$(value $(name)))'))
OPTIONS = $(given) $(ARGS)

# Tests are parallel processes of one thread each.
test_env = OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

help:
	@echo 'make list                     papers, their titles and verdicts'
	@echo 'make show-<paper>             its experiments, claims and published verdicts'
	@echo 'make fetch-<paper>            fetch its data and models'
	@echo 'make reproduce-<paper>        run, judge, draw   [scale=smoke|laptop|paper] [seeds=20] [launcher=..] [publish=true]'
	@echo 'make submit-<paper>           send it to a Slurm cluster   [scale=paper] [dry_run=true]; then status-<paper>, cancel-<paper>'
	@echo 'make verify-<paper>           re-run one seed per cell and compare bitwise'
	@echo 'make reproduce-all            every paper, one after the other   [scale=..]'
	@echo 'make compare kind=<kind>      every method of a kind on its tasks   [tasks=a,b]'
	@echo 'make report                   rebuild the scoreboard and pages from results/'
	@echo 'make sync                     upload what tracker=wandb recorded offline   [ARGS=--dry-run]'
	@echo 'make test | test-fast         all tests | those of about two minutes'
	@echo 'make lint | format            ruff, mypy, import-linter | ruff format'

setup:
	@scripts/setup $(EXTRAS)

list:
	@scripts/setup
	@$(PY) -m runners.list $(OPTIONS)

show-%:
	@scripts/setup
	@$(PY) -m runners.show paper=$* $(OPTIONS)

fetch-%:
	@scripts/setup --paper $*
	@$(PY) -m runners.fetch paper=$* $(OPTIONS)

reproduce-all:
	@scripts/setup --papers
	@failed=; for yaml in conf/paper/*.yaml; do paper=$$(basename $$yaml .yaml); \
	  $(PY) -m runners.reproduce paper=$$paper $(OPTIONS) || failed="$$failed $$paper"; \
	done; if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

reproduce-%:
	@scripts/setup --paper $*
	@$(PY) -m runners.reproduce paper=$* $(OPTIONS)

verify-%:
	@scripts/setup --paper $*
	@$(PY) -m runners.verify paper=$* $(OPTIONS)

submit-%:
	@scripts/setup --paper $* slurm
	@$(PY) -m runners.cluster submit paper=$* $(OPTIONS)

status-%:
	@scripts/setup
	@$(PY) -m runners.cluster status paper=$* $(OPTIONS)

cancel-%:
	@scripts/setup
	@$(PY) -m runners.cluster cancel paper=$* $(OPTIONS)

compare:
	@scripts/setup --kind '$(subst ','\'',$(kind))' --papers
	@$(PY) -m runners.compare $(OPTIONS)

report:
	@scripts/setup
	@$(PY) -m runners.report $(OPTIONS)

sync:
	@scripts/setup wandb
	@WANDB_DIR="$${REPRISE_OUTPUTS:-outputs}" $(PY) -m wandb sync --yes $(OPTIONS)

# In parallel first; then, one by one, what needs the machine to itself. Both run even if the first fails. pytest's
# code 5 (no such test) is no failure of the second. JUNIT=<folder> writes their reports there.
junit = $(if $(JUNIT),--junitxml=$(JUNIT)/$(1).xml)
test:
	@scripts/setup --papers dev wandb slurm
	@code=0; \
	$(test_env) $(PY) -m pytest -n $(JOBS) --dist loadgroup -m 'not exclusive' $(call junit,parallel) $(PYTEST_ARGS) || code=$$?; \
	$(test_env) $(PY) -m pytest -m exclusive $(call junit,exclusive) $(PYTEST_ARGS) || { last=$$?; [ $$last -eq 5 ] || code=$$last; }; \
	exit $$code

test-fast:
	@scripts/setup --papers dev wandb slurm
	@$(test_env) $(PY) -m pytest -n $(JOBS) --dist loadgroup -m 'not slow and not exclusive' $(PYTEST_ARGS)

lint:
	@scripts/setup --papers dev wandb slurm
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@.venv/bin/lint-imports --no-cache

format:
	@scripts/setup dev
	@$(PY) -m ruff check --fix-only .
	@$(PY) -m ruff format .

lock:
	@scripts/lock
