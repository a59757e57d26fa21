"""A run of agents that talk is killed and resumed: children that ended are kept, and no message arrives twice."""

import json
import signal
import subprocess
from pathlib import Path

from tests.cli.conftest import SHOAL, Shoal, environment
from tests.conftest import git

PLAN = """
if [ ! -e first.txt ]; then
  shoal-talk spawn 'echo child > child.txt'
  shoal-talk wait
  shoal-talk inbox wait=30 most=1 > first.txt
  while shoal-talk agents | grep -q ^other; do sleep 0.1; done
  echo ready
  sleep 60
fi
shoal-talk spawn 'echo child > child.txt' > again.txt
shoal-talk wait >> again.txt
shoal-talk inbox > second.txt
shoal-talk inbox > third.txt
exit 0
"""
OTHER = """
until shoal-talk send plan one; do sleep 0.1; done
shoal-talk send plan two
"""


def test_a_killed_run_repeats_neither_children_nor_messages(repo: Path, shoal: Shoal) -> None:
    talk = {"spawn": 1, "message": True}
    agents = {"shell": {"adapter": "command", "command": ["sh", "-s"], "talk": talk}}
    steps = [{"name": "plan", "agent": "shell", "prompt": PLAN}, {"name": "other", "agent": "shell", "prompt": OTHER}]
    (repo / "p.yaml").write_text(json.dumps({"agents": agents, "steps": steps}))
    command = [str(SHOAL), "run", "p.yaml", "--events"]
    with subprocess.Popen(
        command, cwd=repo, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        assert running.stdout is not None
        next(line for line in running.stdout if '"ready' in line)
        running.send_signal(signal.SIGKILL)
        running.stdout.read()
    before = child_of(json.loads(shoal("status", "--json").out))

    report = json.loads(shoal("resume", "--json").out)

    (plan,) = next(step["worker_results"] for step in report["steps"] if step["step"] == "plan")
    files = {name: git(repo, "show", f"{plan['branch']}:{name}.txt") for name in ("first", "second", "third", "again")}
    assert report["status"] == "succeeded"
    assert child_of(report) == before, "one session, which was not started again"
    assert files["again"].startswith("plan_1 has been started\nplan_1: succeeded")
    assert "> one" in files["first"]
    assert "> two" in files["second"]
    assert "> one" not in files["second"]
    assert files["third"] == "no messages"


def child_of(report: dict[str, list[dict[str, list[dict[str, str]]]]]) -> list[str]:
    return [
        worker["session"]
        for step in report["steps"]
        for worker in step["worker_results"]
        if "plan_" in worker["session"]
    ]


def test_a_log_shows_what_an_agent_said_and_started_and_what_it_was_refused(repo: Path, shoal: Shoal) -> None:
    script = "shoal-talk spawn 'echo x > x'; shoal-talk spawn true; until shoal-talk send ui 'a \\033[31mb'; do sleep 0.1; done"
    agents = {"shell": {"adapter": "command", "command": ["sh", "-s"], "talk": {"spawn": 1, "message": True}}}
    steps = [
        {"name": "api", "agent": "shell", "prompt": script},
        {"name": "ui", "agent": "shell", "prompt": "shoal-talk inbox wait=30"},
    ]
    (repo / "p.yaml").write_text(json.dumps({"agents": agents, "steps": steps}))

    said = shoal("run", "p.yaml")
    log = shoal("logs", "api-").out

    assert "-- starts api_1: echo x > x --" in log
    assert "-- refused spawn: you and the agents that you started may start 1, and all have been started --" in log
    assert "-- to ui: a " in log
    assert "\033[31m" not in log
    live = said.out + said.err
    assert all(word in live for word in ("spawned  api", "refused  api", "told     api"))


PLANNER = """
shoal-talk remember greeting 'say moin'
shoal-talk spawn 'echo one > one.txt' > spawned.txt
shoal-talk spawn 'shoal-talk recall moin > recalled.txt' >> spawned.txt
shoal-talk spawn agent=riddle 'what is six times seven' >> spawned.txt
shoal-talk ask plan_3 'what is it?' timeout=30 > answer.txt
shoal-talk wait > ended.txt
shoal-talk merge plan_1 | grep '^ *git' | sh
shoal-talk merge plan_2 | grep '^ *git' | sh
cat one.txt one.txt > built.txt
"""
RIDDLE = """
shoal-talk inbox wait=60 > asked.txt
shoal-talk reply "$(sed -n 's/^Message \\([^ ]*\\) .*/\\1/p' asked.txt)" 42
"""


def test_a_planner_starts_three_asks_one_recalls_a_note_and_builds_on_a_branch(repo: Path, shoal: Shoal) -> None:
    talk = {"spawn": 3, "depth": 1, "message": True, "notes": True, "agents": ["riddle"]}
    shell = {"adapter": "command", "command": ["sh", "-s"], "talk": talk}
    riddle = {"adapter": "command", "command": ["sh", "-c", RIDDLE], "talk": {"message": True}}
    steps = [{"name": "plan", "agent": "shell", "prompt": PLANNER}]
    (repo / "p.yaml").write_text(json.dumps({"agents": {"shell": shell, "riddle": riddle}, "steps": steps}))

    done = shoal("run", "p.yaml", "--json")

    report = json.loads(done.out)
    (plan,) = next(step["worker_results"] for step in report["steps"] if step["step"] == "plan")
    show = {
        name: git(repo, "show", f"{plan['branch']}:{name}.txt")
        for name in ("spawned", "answer", "ended", "recalled", "built")
    }
    assert show["spawned"].count("has been started") == 3, show
    assert "42" in show["answer"]
    assert "say moin" in show["recalled"]
    assert show["built"] == "one\none"


def test_an_unknown_agent_in_talk_is_reported_at_its_place(repo: Path, shoal: Shoal) -> None:
    agents = "agents: {shell: {adapter: command, command: [sh, -s], talk: {spawn: 1, agents: [shel]}}}"
    (repo / "p.yaml").write_text(f"{agents}\nsteps: [{{name: plan, agent: shell, prompt: x}}]\n")

    done = shoal("validate", "p.yaml")

    assert (done.code, done.err) == (2, "p.yaml:1:81: no agent named 'shel'; did you mean `shell`?\n")
