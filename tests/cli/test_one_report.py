"""`shoal run --json` and `shoal status --json` print the same report: both are made of the recorded events."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.cli.conftest import SHOAL, environment, shoal_in
from tests.cli.flows import CHEAP, Ran, ran, written
from tests.cli.warm import Said

JUDGE = """echo '{"ranking": [1, 0]}'"""
EVERYTHING = """
pipelines:
  - name: main
    steps:
      - {name: plan, agent: do, prompt: 'echo plan > plan.txt'}
      - {name: polish, needs: plan, agent: do, prompt: 'echo {{ loop.round }} > polished', loop: {max: 3, until: "loop.round == 2"}}
      - {name: best, agent: do, prompt: 'echo $SHOAL_WORKER_INDEX > best', concurrency: 2, select: {by: agent, agent: judge}}
      - {name: cells, agent: do, prompt: 'echo x > cell-{{ matrix.n }}; [ {{ matrix.n }} != 2 ]', strategy: {matrix: {n: [1, 2]}, fail-fast: false}}
      - {name: ship, needs: plan, gate: "Ship it?"}
      - {name: group, needs: ship, pipeline: inner}
      - {name: same, agent: do, prompt: 'echo same > plan.txt'}
      - {name: fails, agent: do, prompt: 'exit 1'}
      - {name: skipped, needs: fails, agent: do, prompt: 'true'}
      - {name: passed-over, if: "1 == 2", agent: do, prompt: 'true'}
      - {name: again, agent: do, prompt: '[ $SHOAL_ATTEMPT = 2 ]', retry: 2}
  - name: inner
    steps:
      - {name: one, agent: do, prompt: 'echo one > one.txt'}
      - {name: two, needs: one, agent: do, prompt: 'echo two > two.txt'}
"""


def status_of(done: Ran) -> dict[str, Any]:
    """Give what `status` says of the same run, without what only it says."""
    found: dict[str, Any] = json.loads(shoal_in(done.repo)("status", done.report["run"], "--json").out)
    return {key: value for key, value in found.items() if key not in ("waiting", "deliveries", "claims")}


def test_a_run_of_every_kind_of_stage_is_reported_as_its_status(repo: Path) -> None:
    done = ran(repo, EVERYTHING, "main", "--yes", runtime=f"{CHEAP}, merge: {{verify: 'true'}}", judge=JUDGE)

    assert done.report == status_of(done)
    assert [step["step"] for step in done.report["steps"]][:8] == [
        *("plan", "polish", "best", "cells", "ship", "group", "group_one", "group_two")
    ]
    assert (done["polish"]["rounds"], done["best"]["selected"], done["cells"]["status"]) == (2, 1, "degraded")
    assert done["best_judge"]["status"] == "succeeded"
    assert done.statuses["skipped"] == done.statuses["passed-over"] == "skipped"
    assert done.report["overlaps"]
    assert done.report["merge"]["results"]


def test_a_run_that_was_cancelled_is_reported_as_its_status(repo: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    steps = f"""
    steps:
      - {{name: quick, agent: do, prompt: 'echo quick > quick.txt'}}
      - {{name: slow, needs: quick, agent: do, prompt: 'echo slow > slow.txt; echo > {begun}; sleep 600'}}
      - {{name: after, needs: slow, agent: do, prompt: 'true'}}
    """
    words = [str(SHOAL), "run", written(repo, steps), "--json"]
    with subprocess.Popen(
        words, cwd=repo, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        begun.read_text()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate()
    done = Ran(repo, Said(running.returncode, out, err), json.loads(out))

    assert running.returncode == 130
    assert done.report == status_of(done)
    assert done.statuses == {"quick": "succeeded", "slow": "cancelled", "after": "cancelled"}
