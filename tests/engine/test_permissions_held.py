"""Permissions are held by the wall, checked before anything starts, frozen, and written down."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from shoal import AccessDenied, IsolatedAgentSession
from shoal.engine.prepare import Ask
from shoal.engine.run import run
from shoal.errors import BadInput, ShoalError, Unavailable
from shoal.model.events import PermissionDecided, Recorded, SessionEnded
from shoal.model.permissions import Permissions
from shoal.model.policy import Network
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.pipeline.load import load
from shoal.pipeline.plan import plan
from shoal.store.paths import StatePaths
from shoal.store.read import session_events
from tests.acting import assert_nothing_left, fingerprint, ran, shown, step
from tests.cli.conftest import shoal_in
from tests.conftest import git

WALLS = [
    ("overlay", "bubblewrap"),
    ("worktree", "bubblewrap"),
    ("directory", "bubblewrap"),
    ("worktree", "landlock"),
    ("directory", "landlock"),
]
HELD = pytest.mark.parametrize(("strategy", "sandbox"), WALLS, ids=["-".join(pair) for pair in WALLS])

# Each line is an attempt at a file that is not to be written; none may change what the branch holds.
ATTEMPTS = """
echo bad > new
echo bad >> README.md
rm -f README.md
mv README.md moved
mkdir folder
ln README.md d0/hard && echo bad > d0/hard
ln -sf ../README.md d0/soft && echo bad > d0/soft; rm -f d0/soft
mv d0 d1
rmdir d0; rm -rf d0/../README.md
cp -f d0/f0.txt README.md
git checkout -q HEAD~0 -- README.md
echo bad > .git
echo good > d0/f0.txt
echo good > d0/made
"""


async def one(
    repo: Path, script: str, permissions: Permissions, *, sandbox: str = "bubblewrap", strategy: str = "auto"
) -> WorkerResult:
    """Run one agent with these permissions."""
    report = await ran(repo, step("work", script, permissions=permissions), sandbox=sandbox, strategy=strategy)
    return report.steps[0].worker_results[0]


def changed(repo: Path, result: WorkerResult) -> list[str]:
    assert result.branch is not None, result
    return git(repo, "diff", "--name-only", "main", result.branch).splitlines()


def decisions(repo: Path, session: str) -> list[tuple[bool, str, str]]:
    """What the session's audit log says: allowed, subject, rule."""
    recorded = session_events(StatePaths.of(repo), session)
    events = [one.event for one in recorded if isinstance(one.event, PermissionDecided)]
    return [(event.allowed, event.subject, event.rule) for event in events]


@HELD
async def test_only_the_writable_folder_can_be_written(repo: Path, strategy: str, sandbox: str) -> None:
    before = fingerprint(repo)
    permissions = Permissions(writable=("d0", "d0/f1.txt"))

    result = await one(repo, ATTEMPTS, permissions, sandbox=sandbox, strategy=strategy)

    assert changed(repo, result) == ["d0/f0.txt", "d0/made"], result
    assert shown(repo, result, "d0/made") == "good"
    assert shown(repo, result, "README.md") == "scratch"
    assert fingerprint(repo) == before
    assert_nothing_left(repo)


@HELD
async def test_a_single_file_can_be_written_and_git_still_commits(repo: Path, strategy: str, sandbox: str) -> None:
    script = "echo good >> README.md; echo bad > d0/f0.txt; git commit -qam 'my own' && git status --short"

    result = await one(repo, script, Permissions(writable=("README.md",)), sandbox=sandbox, strategy=strategy)

    assert (result.status, result.output) == (Status.SUCCEEDED, "")
    assert changed(repo, result) == ["README.md"]
    assert git(repo, "log", "-1", "--format=%s", str(result.branch)) == "my own"


@HELD
async def test_nothing_can_be_written_where_nothing_is_listed(repo: Path, strategy: str, sandbox: str) -> None:
    script = "echo bad > new; echo bad > README.md; echo own > $HOME/x && echo own > $TMPDIR/x && cat d0/f0.txt"

    result = await one(repo, script, Permissions(writable=()), sandbox=sandbox, strategy=strategy)

    assert result.status is Status.NO_CHANGES, result
    assert result.output.startswith("line 0\n")


async def test_a_tree_made_by_plumbing_does_not_reach_the_tip(repo: Path) -> None:
    """The gitdir is the agent's own; what it commits without a file is not in what is brought in."""
    script = """
blob=$(echo bad | git hash-object -w --stdin)
git update-index --add --cacheinfo 100644,$blob,README.md && git update-index --add --cacheinfo 100644,$blob,new
git commit -qm sly && echo good > d0/f0.txt && git cat-file -p HEAD:new
"""

    result = await one(repo, script, Permissions(writable=("d0",)))

    assert result.output == "bad\n"
    assert changed(repo, result) == ["d0/f0.txt"]


@HELD
async def test_a_readable_folder_outside_can_be_read_and_not_written(
    repo: Path, tmp_path: Path, strategy: str, sandbox: str
) -> None:
    data, beside = tmp_path / "data", tmp_path / "beside"
    for folder in (data, beside):
        folder.mkdir()
        (folder / "x").write_text("of the host\n")
    script = f"cat {data}/x; echo bad > {data}/x; echo bad > {data}/new; cat {beside}/x; echo done > done"

    result = await one(repo, script, Permissions(readable=(str(data),)), sandbox=sandbox, strategy=strategy)

    assert result.output == "of the host\n"
    assert changed(repo, result) == ["done"]
    assert [(path.name, path.read_text()) for path in data.iterdir()] == [("x", "of the host\n")]


async def test_every_face_of_the_run_says_what_is_readable_outside(repo: Path, tmp_path: Path) -> None:
    report = await ran(repo, step("work", "true", permissions=Permissions(readable=(str(tmp_path / "repo/d0"),))))

    assert f"step work: may read {tmp_path}/repo/d0, outside of its workspace" in report.notes


async def refused(repo: Path, permissions: Permissions, *, sandbox: str = "bubblewrap", **task: object) -> ShoalError:
    """See that a run does not start, and leaves nothing."""
    with pytest.raises(ShoalError) as caught:
        await ran(repo, step("work", "touch ran", permissions=permissions, **task), sandbox=sandbox)  # type: ignore[arg-type]

    assert_nothing_left(repo)
    assert shoal_in(repo)("status").code == 2, "no run is known"
    return caught.value


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("missing", "is not in the base"),
        ("uncommitted", "is not in the base"),
        ("README.md/x", "'README.md' is no folder"),
        ("link", "'link' is a link"),
        ("link/f0.txt", "'link' is a link"),
        ("d0/out", "'d0/out' is a link"),
        ("d0/out/x", "'d0/out' is a link"),
        (".git", "git's own"),
        ("../x", "does not say where it leads"),
        ("/srv", "lies outside of the workspace"),
    ],
)
async def test_a_writable_path_that_cannot_be_opened_is_refused(repo: Path, path: str, why: str) -> None:
    (repo / "link").symlink_to("d0")
    (repo / "d0/out").symlink_to("/etc")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "links")
    (repo / "uncommitted").mkdir()

    error = await refused(repo, Permissions(writable=("d0", path)))

    assert isinstance(error, BadInput)
    assert why in str(error)


@pytest.mark.parametrize("sandbox", ["bubblewrap", pytest.param("landlock", marks=pytest.mark.deep)])
async def test_a_readable_path_that_must_stay_shut_is_refused(
    repo: Path, tmp_path: Path, sandbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home/me"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "link").symlink_to(tmp_path / "home")
    os.mkfifo(tmp_path / "fifo")
    expected = {
        "/": "holds your home",
        str(home): "holds your home",
        str(tmp_path / "home"): "holds your home",
        str(repo): "stays hidden",
        str(repo / ".git"): "stays hidden",
        str(repo / ".git/hooks"): "stays hidden",
        str(repo / ".git/HEAD"): "stays hidden",
        str(repo / ".shoal"): "stays hidden",
        str(repo / ".shoal/boxes"): "stays hidden",
        str(tmp_path / "missing"): "does not exist",
        str(tmp_path / "link"): f"it leads to {tmp_path}/home; name that",
        f"{tmp_path}/x/../home": "",
        str(tmp_path / "fifo"): "neither a folder nor a plain file",
        "/proc/1": "sockets or devices",
        "/run": "sockets or devices",
        "/dev/null": "neither a folder nor a plain file",
    }

    for path, why in expected.items():
        error = await refused(repo, Permissions(readable=(path,)), sandbox=sandbox)
        assert isinstance(error, BadInput), path
        assert str(error).startswith(f"step work: permissions: {path} cannot be made readable: "), error
        assert why in str(error), error


async def test_what_the_box_has_of_its_own_cannot_be_shown(repo: Path) -> None:
    assert isinstance(await refused(repo, Permissions(readable=("/etc",))), BadInput)


async def test_hosts_with_the_hosts_network_do_not_start(repo: Path) -> None:
    for hosts in (("example.org",), ()):
        error = await refused(repo, Permissions(hosts=hosts), network=Network.HOST)

        assert isinstance(error, Unavailable)
        assert error.exit_code == 5
        assert "permissions.hosts cannot be had here" in str(error)


async def test_hosts_without_a_network_are_recorded_as_out_of_reach(repo: Path) -> None:
    result = await one(repo, "echo a > a", Permissions(hosts=("example.org",)))

    assert decisions(repo, result.session) == [(False, "host example.org", "network: none")]


@pytest.mark.parametrize("permissions", [Permissions(writable=("d0",)), Permissions(hosts=())])
async def test_without_a_wall_what_nothing_holds_does_not_start(repo: Path, permissions: Permissions) -> None:
    error = await refused(repo, permissions, sandbox="none")

    assert isinstance(error, Unavailable)
    assert "without a wall nothing holds it" in str(error)


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
    ask = Ask(folder=repo, environ=dict(os.environ), grace=0.5)
    report = await run(made, ask, stop=asyncio.Event(), listen=meddle)

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


def test_the_command_refuses_with_the_right_exit_code(repo: Path) -> None:
    words = "agents: {x: {adapter: command, command: 'true'%s}}\nsteps: [{name: a, agent: x, prompt: go%s}]\n"
    file = repo / "shoal.yaml"
    shoal = shoal_in(repo)

    file.write_text(words % ("", ", permissions: {writable: [/srv]}"))
    outside = shoal("run", "shoal.yaml")
    file.write_text(words % ("", ", permissions: {writable: [gone]}"))
    missing = shoal("run", "shoal.yaml")
    file.write_text(words % (", permissions: {hosts: [example.org]}", ", network: host"))
    hosts = shoal("run", "shoal.yaml")

    assert (outside.code, missing.code, hosts.code) == (2, 2, 5)
    assert "shoal.yaml:2:66: permissions: writable '/srv' lies outside" in outside.err
    assert "step a: permissions: writable 'gone' is not in the base" in missing.err


def test_a_held_session_is_narrowed_and_its_questions_are_in_its_log(repo: Path) -> None:
    with IsolatedAgentSession("held", repo, permissions={"writable": ["d0"], "deny": ["Bash(rm *)"]}) as session:
        for _ in range(2):
            done = session.run("echo bad > new; echo good >> d0/made; mv d0 d1; true")
        manager = session.permission_manager
        assert manager.validate_path("d0/made", write=True) == session.workspace / "d0/made"
        with pytest.raises(AccessDenied):
            manager.validate_path("README.md", write=True)
        assert not manager.tool_allowed("Bash", "rm x")

    assert done.exit_code == 0
    assert session.result is not None
    assert changed(repo, session.result) == ["d0/made"]
    assert git(repo, "show", f"{session.branch}:d0/made") == "good\ngood"
    assert decisions(repo, session.result.session) == [
        (True, "write d0", "d0"),
        (False, "write anything else in the workspace", "not listed"),
        (True, "tools", "allow all; deny Bash(rm *)"),
        (True, "write d0/made", str(session.workspace / "d0")),
        (False, "write README.md", "not listed"),
        (False, "Bash(rm x)", "Bash(rm *)"),
    ]
    assert not session.permission_manager.tool_allowed("Bash", "rm y"), "it still answers, though its log is closed"


@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock"])
def test_a_link_that_a_program_of_the_hosts_put_there_is_not_followed(repo: Path, tmp_path: Path, sandbox: str) -> None:
    """An agent can commit a link by git's plumbing, and a program of the host's may check that commit out."""
    outside = tmp_path / "outside"
    outside.mkdir()

    with IsolatedAgentSession("linked", repo, permissions={"writable": ["d0"]}, sandbox=sandbox) as session:
        (session.workspace / "d0").rename(session.workspace / "was")
        (session.workspace / "d0").symlink_to(outside)
        with pytest.raises(BadInput, match="'d0' is a link"):
            session.run("echo bad > d0/x")

    assert list(outside.iterdir()) == []


def test_a_held_session_takes_secrets_by_name_and_masks_them(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cr3t-value-0123")

    with IsolatedAgentSession("secretive", repo, secrets=("TOKEN",), env={"MODE": "plain"}) as session:
        done = session.run('echo "$TOKEN $MODE"; echo "$TOKEN" >&2; echo "$TOKEN" > kept')
        assert session.permission_manager.env_allowed("TOKEN")
        assert not session.permission_manager.env_allowed("HOME")
        assert not session.permission_manager.is_allowed("/s3cr3t-value-0123")

    assert (done.output, done.error) == ("[secret TOKEN] plain\n", "[secret TOKEN]\n")
    assert session.result is not None
    paths = StatePaths.of(repo)
    for database in (paths.ledger, paths.session_db(session.result.session)):
        assert b"s3cr3t-value-0123" not in database.read_bytes()
    assert decisions(repo, session.result.session)[0] == (True, "env TOKEN", "env")
    assert git(repo, "show", f"{session.branch}:kept") == "s3cr3t-value-0123", "the work itself is not changed"


def test_a_held_session_refuses_what_it_cannot_hold(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cr3t-value-0123")

    with pytest.raises(BadInput, match="'TOKEN' may not be taken from the host"):
        IsolatedAgentSession("a", repo, secrets=["TOKEN"], permissions={"env": []})
    with pytest.raises(BadInput, match="the host has no variable 'NO_SUCH_ONE'"):
        IsolatedAgentSession("a", repo, secrets=["NO_SUCH_ONE"])
    with pytest.raises(BadInput, match="list of names"):
        IsolatedAgentSession("a", repo, secrets="")
    with pytest.raises(BadInput, match="did you mean 'deny'"):
        IsolatedAgentSession("a", repo, permissions={"denny": []})
    with (
        pytest.raises(BadInput, match="is not in the base"),
        IsolatedAgentSession("a", repo, permissions=Permissions(writable=("gone",))),
    ):
        pass
    assert_nothing_left(repo)
