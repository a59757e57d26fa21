# Everything a fresh clone needs; python3, git and make are enough to start.
.PHONY: setup demo test test-deep test-user check bench clean

PYTEST = .venv/bin/python -m pytest $(if $(CI),-p scripts.no_skips)
SCRIPTS = scripts/no_skips.py $(wildcard scripts/bench.py)

setup:
	@sh scripts/setup

demo: setup
	.venv/bin/shoal demo

test: setup
	$(PYTEST) -n 2 tests

# 5 = no test is marked deep
test-deep: setup
	$(PYTEST) -m deep tests || [ $$? -eq 5 ]

# as root: the same tests once more, as a user without any rights, in a copy of this tree
test-user:
	bash scripts/as-user make test

check: setup
	.venv/bin/mypy --strict src tests $(SCRIPTS)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

bench: setup
	.venv/bin/python scripts/bench.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
