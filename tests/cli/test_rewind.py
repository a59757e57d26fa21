"""`shoal rewind`: a session starts again from one of its checkpoints, and its dependants run again."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shoal import AgentCoordinator
from shoal.errors import BadInput
from shoal.model.events import CheckpointKept, Recorded
from tests.cli.conftest import SHOAL, Shoal
from tests.cli.flows import CHEAP, written
from tests.cli.test_approve import started
from tests.cli.test_checkpoints import OFTEN, checkpoints, list_files, wait_for_checkpoint
from tests.conftest import git

STEPS = """\
steps:
  - {name: plan, agent: do, prompt: "echo plan >> $OUT/starts; echo plan > plan.txt"}
  - {name: build, agent: slow, needs: [plan], prompt: build it}
  - {name: other, agent: do, needs: [plan], prompt: "echo other >> $OUT/starts; echo other > other.txt"}
  - {name: check, agent: do, needs: [build], prompt: "echo check >> $OUT/starts; ls > seen.txt"}
"""
SLOW = """\
echo build >> $OUT/starts
cp "$SHOAL_PROMPT_FILE" $OUT/prompt
[ ! -e one.txt ] || { echo again > again.txt; exit; }
echo one > one.txt
while [ ! -e "$OUT/1" ]; do sleep 0.05; done
echo two > two.txt
while [ ! -e "$OUT/2" ]; do sleep 0.05; done
"""


class Rewound:
    """A run that has ended, with two checkpoints of `build`: the first has one file, the second two."""

    def __init__(self, repo: Path, shoal: Shoal, out: Path) -> None:
        self.repo, self.shoal, self.out = repo, shoal, out
        out.mkdir()
        prefix = f"OUT='{out}'; export OUT\n"
        do = prefix + 'eval "$(head -n 1 "$SHOAL_PROMPT_FILE")"'
        written(repo, STEPS, runtime=f"{CHEAP}, {OFTEN}", slow=prefix + SLOW, do=do)
        with started(repo, SHOAL, "run", "p.yaml", "--events") as run:
            self.first = wait_for_checkpoint(run, 1)
            (out / "1").touch()
            wait_for_checkpoint(run, 2)
            (out / "2").touch()
            assert run.process.stdout is not None
            run.process.stdout.read()
            assert run.process.wait(timeout=60) == 0
        self.session = str(self.worker("build")["session"])

    def worker(self, step: str) -> dict[str, Any]:
        steps = {entry["step"]: entry for entry in json.loads(self.shoal("status", "--json").out)["steps"]}
        found: dict[str, Any] = steps[step]["worker_results"][0]
        return found

    def starts(self) -> Counter[str]:
        return Counter((self.out / "starts").read_text().split())


@pytest.fixture
def ended(repo: Path, shoal: Shoal, tmp_path: Path) -> Rewound:
    return Rewound(repo, shoal, tmp_path / "out")


def test_a_session_starts_again_from_a_checkpoint_and_so_does_what_depends_on_it(ended: Rewound) -> None:
    before = {step: ended.worker(step)["branch"] for step in ("plan", "build", "other", "check")}

    tried = ended.shoal("rewind", "build", "--to", "1", "--dry-run")
    assert (tried.code, ended.starts()) == (0, Counter(plan=1, build=1, other=1, check=1))
    said = ended.shoal("rewind", "build", "--to", "1")

    assert said.code == 0, said.err
    for line in (
        f"shoal: {ended.session} starts again from checkpoint 1 ({ended.first[:12]})",
        f"shoal: also run again: check-{before['check'].rpartition('/')[2]}",
        f"shoal: their work stays on {before['build']}, {before['check']}",
    ):
        assert line in tried.err
        assert line in said.err
    assert ended.starts() == Counter(plan=1, build=2, other=1, check=2)
    now = ended.worker("build")
    assert now["branch"] != before["build"]
    assert list_files(ended.repo, now["branch"]) == ["again.txt", "one.txt", "plan.txt"]
    assert "again.txt" in git(ended.repo, "show", f"{ended.worker('check')['branch']}:seen.txt")
    assert f"started from checkpoint 1 of {ended.session}" in now["notes"]
    assert "## This task starts again from a checkpoint" in (ended.out / "prompt").read_text()
    assert list_files(ended.repo, before["build"]) == ["one.txt", "plan.txt", "two.txt"]
    assert (ended.worker("plan")["branch"], ended.worker("other")["branch"]) == (before["plan"], before["other"])
    assert ended.shoal("resume").code == 0
    assert ended.starts()["build"] == 2


def test_its_checkpoints_are_listed_and_others_are_refused(ended: Rewound) -> None:
    shown, document = ended.shoal("rewind", "build", "--list"), ended.shoal("rewind", "build", "--list", "--json")
    rows = [line.split("  ") for line in shown.out.splitlines()]
    found = json.loads(document.out)

    assert [row[0].strip() for row in rows] == ["checkpoint", "1", "2"]
    assert [(entry["number"], entry["files_changed"]) for entry in found["checkpoints"]] == [(1, 1), (2, 2)]
    assert found["checkpoints"][0]["commit"] == ended.first
    wrong, neither, none = (
        ended.shoal("rewind", "build", "--to", "7"),
        ended.shoal("rewind", "build"),
        ended.shoal("rewind", "plan", "--to", "1"),
    )
    assert (wrong.code, neither.code, none.code) == (2, 2, 2)
    assert f"{ended.session} has no checkpoint 7; it has 1, 2" in wrong.err
    assert "--to N" in neither.err
    assert "has no checkpoints" in none.err


def test_a_session_can_be_rewound_again_and_not_after_clean(ended: Rewound) -> None:
    assert ended.shoal("rewind", ended.session, "--to", "2").code == 0
    again = ended.shoal("rewind", ended.session, "--to", "1")
    assert again.code == 0, again.err
    assert list_files(ended.repo, ended.worker("build")["branch"]) == ["again.txt", "one.txt", "plan.txt"]

    assert ended.shoal("clean").code == 0
    assert checkpoints(ended.repo) == []
    assert ended.shoal("rewind", ended.session, "--to", "1").code == 2


async def test_a_program_that_is_started_again_rewinds_a_session(repo: Path, tmp_path: Path) -> None:
    script = f"OUT='{tmp_path}'\n{SLOW}"
    agent = {"adapter": "command", "command": ["sh", "-c", script], "network": "host"}
    settings: dict[str, Any] = {"agent": agent, "sandbox": "none", "checkpoint_seconds": 0.2}

    def go_on(recorded: Recorded) -> None:
        if isinstance(recorded.event, CheckpointKept):
            (tmp_path / str(recorded.event.number)).touch()

    async with AgentCoordinator(repo, listen=go_on, **settings) as coordinator:
        first, later = await coordinator.run_agents([("build", "go"), ("check", "go on", ["build"])])
        run = coordinator.report.run
    async with AgentCoordinator(repo, resume=run, rewind={first.session: 1}, **settings) as coordinator:
        second, last = await coordinator.run_agents([("build", "go"), ("check", "go on", ["build"])])

    assert second.branch != first.branch
    assert list_files(repo, str(first.branch)) == ["one.txt", "two.txt"]
    assert list_files(repo, str(second.branch)) == ["again.txt", "one.txt"]
    assert last.session != later.session
    with pytest.raises(BadInput, match="name that run with resume"):
        AgentCoordinator(repo, rewind={"x": 1})
