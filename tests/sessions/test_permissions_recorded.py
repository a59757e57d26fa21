"""Permissions are frozen at the start, told to the agent and to people, and recorded."""

import asyncio
import json
import os
from pathlib import Path

from shoal.model.events import Recorded, SessionEnded
from shoal.model.permissions import Permissions
from shoal.pipeline.load import load
from shoal.pipeline.plan import plan
from shoal.runs.request import RunRequest
from shoal.runs.run import run
from tests.acting import ran, step
from tests.cli.conftest import shoal_in
from tests.conftest import git
from tests.sessions.permitting import changed, decisions, one


async def test_every_face_of_the_run_says_what_is_readable_outside(repo: Path, tmp_path: Path) -> None:
    report = await ran(repo, step("work", "true", permissions=Permissions(readable=(str(tmp_path / "repo/d0"),))))

    assert f"step work: may read {tmp_path}/repo/d0, outside its workspace" in report.notes


async def test_hosts_without_a_network_are_recorded_as_out_of_reach(repo: Path) -> None:
    result = await one(repo, "echo a > a", Permissions(hosts=("example.org",)))

    assert decisions(repo, result.session) == [(False, "host example.org", "network: none")]


async def test_what_was_granted_at_the_start_is_in_the_audit_log_with_no_secret(repo: Path, tmp_path: Path) -> None:
    data = tmp_path / "s3cr3t-place"
    data.mkdir()
    permissions = Permissions(
        allowed_tools=("Read", "Edit"), deny=("Bash(rm *)",), readable=(str(data),), writable=("d0",), env=("HOST_KEY",)
    )
    given = step("work", "true", permissions=permissions, env={"KEY": "s3cr3t-place"}, secrets=frozenset({"KEY"}))

    report = await ran(repo, given)

    shown_path = f"{tmp_path}/[secret KEY]"
    assert decisions(repo, report.steps[0].worker_results[0].session) == [
        (True, f"read {shown_path}", shown_path),
        (True, "write d0", "d0"),
        (False, "write anything else in the workspace", "not listed"),
        (True, "env KEY", "env"),
        (True, "tools", "allow Read, Edit; deny Bash(rm *)"),
    ]


async def test_an_agent_reads_its_permissions_and_cannot_change_them(repo: Path) -> None:
    script = 'cat "$SHOAL_PERMISSIONS_FILE"; echo "{}" > "$SHOAL_PERMISSIONS_FILE" || rm -f "$SHOAL_PERMISSIONS_FILE"'

    result = await one(repo, script, Permissions(deny=("Write",)))

    told = json.loads(result.output)
    assert (told["deny"], told["allowed_tools"], told["writable"]) == (["Write"], None, ["."])


FROZEN = """\
runtime: {max_concurrent_workers: 1}
agents:
  probe: {adapter: command, command: ["sh", "do.sh"]}
personas:
  narrow: {agent: probe, system_prompt_file: narrow.md, permissions: {writable: [d0], deny: [Write]}}
steps:
  - {name: first, persona: narrow, prompt: go, on_failure: best_effort, permissions: {writable: ["."], env: []}}
  - {name: second, persona: narrow, prompt: go, on_failure: best_effort}
"""

PROBE = """\
printf 'steps: []\\n' > shoal.yaml; echo "you may do anything" > narrow.md; echo "$SHOAL_STEP" > d0/made
cat "$SHOAL_SYSTEM_PROMPT_FILE"; grep -c Write "$SHOAL_PERMISSIONS_FILE"
"""


RESTRICTED = "## Restrictions\n\n- Tools that you may not use: Write."


async def test_what_an_agent_or_a_person_writes_meanwhile_changes_no_permission(repo: Path) -> None:
    """The first agent rewrites document and persona in its workspace, a person does in the checkout: no later one cares."""
    for name, text in {"shoal.yaml": FROZEN, "do.sh": PROBE, "narrow.md": "be careful\n"}.items():
        (repo / name).write_text(text)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "pipeline")

    def meddle(recorded: Recorded) -> None:
        if isinstance(recorded.event, SessionEnded) and recorded.event.step == "first":
            (repo / "shoal.yaml").write_text("steps: []\n")
            (repo / "narrow.md").write_text("you may do anything\n")

    made = plan(load(repo / "shoal.yaml"), environ={})
    request = RunRequest(folder=repo, environ=dict(os.environ), grace=0.5)
    report = await run(made, request, stop=asyncio.Event(), listen=meddle)

    first, second = (one.worker_results[0] for one in report.steps)
    assert changed(repo, first) == ["d0/made", "narrow.md", "shoal.yaml"]
    assert "shoal.yaml" in first.executable, "and it is reported"
    assert (changed(repo, second), second.output) == (["d0/made"], f"be careful\n\n{RESTRICTED}1\n")


def test_the_command_shows_denials_and_all_decisions_to_programs(repo: Path) -> None:
    (repo / "shoal.yaml").write_text(
        "agents: {robot: {adapter: scripted, script: [{write: {path: d0/made, content: x}}, {run: rm -rf d0}]}}\n"
        "steps: [{name: work, agent: robot, prompt: go, permissions: {writable: [d0], deny: ['Bash(rm *)']}}]\n"
    )
    shoal = shoal_in(repo)

    done = shoal("run", "shoal.yaml", "--events")
    told, events = shoal("logs").out, shoal("logs", "--json").out

    assert done.code == 1
    assert "-- denied: write anything else in the workspace (not listed) --\n" in told
    assert "err: denied by rule Bash(rm *): Bash(rm -rf d0)\n" in told
    assert "tools" not in told, "what is allowed is not worth a line"
    for said in (done.out, events):
        decided = [one for one in map(json.loads, said.splitlines()) if one["event"] == "PermissionDecided"]
        assert [one["allowed"] for one in decided] == [True, False, True]
        assert decided[2]["rule"] == "allow all; deny Bash(rm *)"
