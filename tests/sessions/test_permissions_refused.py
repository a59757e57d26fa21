"""Permissions are checked before anything starts: what cannot be enforced is refused, and nothing is left."""

import os
from pathlib import Path

import pytest

from shoal.errors import BadInput, ShoalError, Unavailable
from shoal.model.permissions import Permissions
from shoal.model.policy import Network
from tests.acting import assert_nothing_left, ran, step
from tests.cli.conftest import shoal_in
from tests.conftest import git


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
        ("README.md/x", "'README.md' is not a folder"),
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
        "/": "contains your home",
        str(home): "contains your home",
        str(tmp_path / "home"): "contains your home",
        str(repo): "stays hidden",
        str(repo / ".git"): "stays hidden",
        str(repo / ".git/hooks"): "stays hidden",
        str(repo / ".git/HEAD"): "stays hidden",
        str(repo / ".shoal"): "stays hidden",
        str(repo / ".shoal/boxes"): "stays hidden",
        str(tmp_path / "missing"): "does not exist",
        str(tmp_path / "link"): f"it is a link to {tmp_path}/home; name that instead",
        f"{tmp_path}/x/../home": "",
        str(tmp_path / "fifo"): "neither a folder nor a regular file",
        "/proc/1": "sockets or devices",
        "/run": "sockets or devices",
        "/dev/null": "neither a folder nor a regular file",
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
        assert "permissions.hosts is not available on this host" in str(error)


@pytest.mark.parametrize("permissions", [Permissions(writable=("d0",)), Permissions(hosts=())])
async def test_without_a_wall_what_nothing_holds_does_not_start(repo: Path, permissions: Permissions) -> None:
    error = await refused(repo, permissions, sandbox="none")

    assert isinstance(error, Unavailable)
    assert "without a sandbox nothing enforces it" in str(error)


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
