# All targets work in a fresh clone; they need only python3, git and make.
.PHONY: setup clients demo test test-fast test-clients test-browser test-kills test-deep test-user test-rights check docs bench clean

PYTEST = .venv/bin/python -m pytest $(if $(CI),-p scripts.no_skips)
# more workers than processors: most tests wait for processes to start and to end
AT_ONCE = -n 5 --dist worksteal
# compile once what tests start a thousand times
unexport PYTHONDONTWRITEBYTECODE
RIGHTS = $(addprefix tests/,$(addprefix cli/test_,run.py demo.py clean.py doctor.py approve.py) sessions contracts steps merge runs doctor limits proc sandboxes workspaces agent/test_sandboxed.py)
# real agent clients at pinned versions: those of `make test`, and those that only `make test-clients` uses
CLIENTS = claude codex goose
OTHERS = gemini copilot opencode aider claude-agent-acp codex-acp node
SCRIPTS = scripts/clients scripts/no_skips.py scripts/picture.py scripts/reference $(wildcard scripts/bench*.py)

setup:
	@sh scripts/setup

clients: setup
	@.venv/bin/python scripts/clients $(CLIENTS)

demo: setup
	.venv/bin/shoal demo

test: setup clients
	$(PYTEST) $(AT_ONCE) tests

# quick tests, in under a minute: packages that start no agent, and the architecture
test-fast: setup
	$(PYTEST) $(AT_ONCE) --ignore=tests/pipeline/test_fuzz.py tests/test_architecture.py $(addprefix tests/,model pipeline store patterns adapters proc git)

# one turn of each client, including those that take longer to install or to start
test-clients: setup
	@sh scripts/tmux
	@.venv/bin/python scripts/clients $(CLIENTS) $(OTHERS)
	$(PYTEST) $(AT_ONCE) -m clients tests/clients

# the dashboard in Debian's Chromium
test-browser: setup
	@sh scripts/browser
	$(PYTEST) -m 'browser and not deep' tests/dashboard

# kill and resume hundreds of runs, at every crash point and at random; takes an hour and more
test-kills: setup
	$(PYTEST) $(AT_ONCE) -m kills tests/faults

# long tests, with those that measure time run alone; as root, also test-user
test-deep: setup clients
	@sh scripts/browser
	@sh scripts/sshd
	@sh scripts/ray
	$(PYTEST) $(AT_ONCE) -m 'deep and not alone' tests
	$(PYTEST) -m 'deep and alone' tests
	[ "$$(id -u)" -ne 0 ] || $(MAKE) --no-print-directory test-user

test-user:
	bash scripts/as-user make --no-print-directory test-rights

# tests that depend on the user's rights: every escape in both sandboxes, and the packages that touch the system
test-rights: setup
	$(PYTEST) $(AT_ONCE) -m 'deep or not deep' tests/escapes
	$(PYTEST) $(AT_ONCE) $(RIGHTS)

check: setup
	.venv/bin/mypy --strict src tests $(SCRIPTS) $(wildcard examples/python/*.py)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

# the documentation as a site, in build/site; a broken link or a page that no menu lists is an error
docs: setup
	@.venv/bin/python -m pip install -qq --disable-pip-version-check -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet --strict

bench: setup
	.venv/bin/python scripts/bench.py
	.venv/bin/python scripts/bench_fleet.py
	.venv/bin/python scripts/bench_history.py
	.venv/bin/python scripts/bench_agent.py
	.venv/bin/python scripts/bench_gateway.py
	.venv/bin/python -m scripts.bench_memory
	.venv/bin/python -m scripts.bench_dag
	.venv/bin/python -m scripts.bench_merge
	.venv/bin/python -m scripts.bench_database
	.venv/bin/python -m scripts.bench_ledger

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
