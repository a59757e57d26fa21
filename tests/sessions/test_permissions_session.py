"""Permissions and secrets of a session that a program holds: narrowed, masked, refused and recorded."""

from pathlib import Path

import pytest

from shoal import AccessDenied, IsolatedAgentSession
from shoal.errors import BadInput
from shoal.model.permissions import Permissions
from shoal.store.paths import StatePaths
from tests.acting import assert_nothing_left
from tests.conftest import git
from tests.sessions.permitting import changed, decisions


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

    with pytest.raises(BadInput, match="'TOKEN' is not permitted"):
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
