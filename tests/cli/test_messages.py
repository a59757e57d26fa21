"""What a newcomer types first, and the messages they get."""

import json
import re
from pathlib import Path

from shoal.cli.output import flat
from shoal.cli.render.report import why
from shoal.cli.run_output import ProgressLines
from shoal.model.events import AgentStarted, Recorded
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from tests.cli import warm
from tests.cli.conftest import Shoal
from tests.cli.flows import CHEAP, ran, written
from tests.cli.test_clients_missing import program
from tests.conftest import git

OBEY = "sh -s"


def test_a_text_of_several_words_is_a_task(repo: Path, shoal: Shoal) -> None:
    done = shoal("run", "echo x > x.txt", "--command", OBEY, "--sandbox", "none", "--json")

    (step,) = json.loads(done.out)["steps"]
    assert (done.code, step["step"]) == (0, "task-1")
    assert git(repo, "show", f"{step['worker_results'][0]['branch']}:x.txt") == "x"
    assert "use `--task fix`" in shoal("run", "fix").err


def test_without_an_agent_the_client_that_is_ready_is_taken_and_named(repo: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    path = program(tmp_path / "bin", "claude", "2.1.325 (Claude Code)")
    environ = {"PATH": path, "HOME": str(home), "NO_COLOR": "1"}

    ready = warm.ran(("run", "fix it", "--dry-run"), cwd=repo, env={**environ, "ANTHROPIC_API_KEY": "k"}, timeout=60)
    none = warm.ran(("run", "fix the bug"), cwd=repo, env=environ, timeout=60)

    assert (ready.code, none.code) == (0, 2)
    assert "agent claude: the only client that is ready here" in ready.out
    assert "there is no shoal.yaml; give a program with `--command`, or a client with `--agent`" in none.err
    assert "one of shoal.yaml" not in none.err


def test_next_offers_no_merge_of_work_that_is_held_or_delivered(repo: Path, shoal: Shoal) -> None:
    steps = "steps: [{name: a, agent: do, prompt: 'echo x > x.txt'}]"
    held = shoal(
        "run", written(repo, steps, runtime=f"{CHEAP}, merge: {{strategy: auto, into: main, verify: 'false'}}")
    )
    delivered = shoal("run", written(repo, steps, runtime=f"{CHEAP}, merge: {{strategy: auto, into: main}}"))

    assert "0 of 1 session merged" in held.out
    assert "nothing to deliver into main" in held.out
    assert "delivered into main" in delivered.out
    assert "\nnext:\n  shoal diff a-" in held.out
    assert "\nnext:" not in delivered.out
    assert "git merge" not in held.out + delivered.out


def test_several_agents_do_a_task_each(repo: Path, shoal: Shoal) -> None:
    written(repo, "", one="echo 1 > one", two="echo 2 > two")
    (repo / "p.yaml").rename(repo / "shoal.yaml")

    done = shoal("run", "--task", "x", "--agent", "one", "--agent", "two", "--sandbox", "none", "--json")
    twice = shoal("run", "--task", "x", "--agent", "one", "--agent", "one")

    assert done.code == 0, done.err
    assert sum(len(step["worker_results"]) for step in json.loads(done.out)["steps"]) == 2
    assert twice.code == 2


def test_over_a_limit_its_number_is_said(repo: Path) -> None:
    steps = 'steps: [{name: a, command: "head -c 60M /dev/zero > big; sleep 60", limits: {disk_mb: 20}}]'

    done = ran(repo, steps)

    assert done.worker("a")["error"] == "exceeded its disk limit (20 MB)"
    assert "exceeded its disk limit (20 MB); change its limits" in done.said.err


def test_dates_of_progress_never_go_back() -> None:
    progress = ProgressLines(lambda text, _tone: text)
    events = [
        Recorded(seq=1, at=at, event=AgentStarted(run="r", session=f"s{at}", pid=1)) for at in (5.0, 5.9, 5.8, 6.1)
    ]

    dates = [float((progress.line(one) or "").split("s")[0]) for one in events]

    assert dates == sorted(dates) == [0.0, 0.9, 0.9, 1.1]


def test_lines_are_never_escaped() -> None:
    worker = WorkerResult(index=0, session="s", status=Status.FAILED, exit_code=127, error="it exited with 127: a\nb")

    assert "\\x0a" not in str(why(worker))
    assert flat("a\n  b\x1b[2J") == "a b\\x1b[2J"


def test_no_page_of_the_project_is_named_to_people() -> None:
    root = Path(__file__).parents[2] / "src" / "shoal"
    named = [path for path in root.rglob("*.py") if re.search(r'".*docs/[a-z]+\.md', path.read_text())]

    assert named == []
