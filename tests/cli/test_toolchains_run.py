"""`runtime.toolchains` from the command line: host programs that every agent may run, and none may change."""

import json
import os
import pwd
from pathlib import Path

import pytest

from tests.cli.conftest import Shoal

GREET = "#!/bin/sh\necho greetings\n"


def tool_in(folder: Path, name: str = "greet", text: str = GREET) -> Path:
    """Put a program into *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return folder


def _real_home() -> Path:
    """Say where the home of who runs the tests lies, whatever `HOME` says."""
    return (
        Path(pwd.getpwuid(os.getuid()).pw_dir) if os.getuid() in {one.pw_uid for one in pwd.getpwall()} else Path("/")
    )


def written(repo: Path, *folders: str, command: object, **runtime: object) -> str:
    agents = {"a": {"adapter": "command", "command": command}}
    steps = [{"name": "work", "agent": "a", "prompt": "go"}]
    said = {"runtime": {"toolchains": folders, **runtime}, "agents": agents, "steps": steps}
    (repo / "p.yaml").write_text(json.dumps(said, ensure_ascii=False))
    return "p.yaml"


def output(shoal: Shoal, file: str, **env: str) -> list[str]:
    said = shoal("run", file, "--json", **env)
    assert said.code == 0, said
    return str(json.loads(said.out)["steps"][0]["worker_results"][0]["output"]).splitlines()


@pytest.mark.parametrize("wall", ["bubblewrap", "landlock"])
def test_an_agent_runs_what_lies_there_and_cannot_change_it(
    shoal: Shoal, repo: Path, tmp_path: Path, wall: str
) -> None:
    tools, flat = tool_in(tmp_path / "tools/bin").parent, tool_in(tmp_path / "flat", "wave", "#!/bin/sh\necho waves\n")
    tool_in(tools / "bin", "ls", "#!/bin/sh\necho not the system's\n")
    (tools / "share").write_text("data\n")
    tries = f"echo x > {tools}/x; echo x >> {tools}/bin/greet; rm -f {tools}/share; mv {flat} {flat}2"
    look = f"greet; wave; cat {tools}/share; ls {tools}; echo $PATH"
    file = written(
        repo, str(tools), str(flat), command=["sh", "-c", f"{{ {tries}; }} 2>/dev/null; {look}"], sandbox=wall
    )

    *said, path = output(shoal, file)

    assert said == ["greetings", "waves", "data", "bin", "share"], "the system's own programs come first"
    assert path.endswith(f":/bin:{tools}/bin:{flat}")
    assert (tools / "bin/greet").read_text() == GREET
    assert {one.name for one in tools.iterdir()} == {"bin", "share"}
    assert [one.name for one in flat.iterdir()] == ["wave"]


def test_it_may_be_a_link_below_the_home_and_holds_the_agents_own_command(
    shoal: Shoal, repo: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    tool_in(home / "versions/7/bin", "greet", f"#!{home}/versions/7/bin/run\n")
    os.symlink("/bin/echo", home / "versions/7/bin/run")
    (home / "now").symlink_to("versions/7")
    (home / "secret").write_text("s")

    assert output(shoal, written(repo, "~/now", command=["greet"]), HOME=str(home)) == [f"{home}/now/bin/greet"]
    seen = written(repo, "~/now", command=["sh", "-c", f"ls -A {home}"])
    assert output(shoal, seen, HOME=str(home)) == ["now", "versions"]


def test_set_up_has_it_too(shoal: Shoal, repo: Path, tmp_path: Path) -> None:
    tools = tool_in(tmp_path / "tools/bin").parent
    file = written(repo, str(tools), command=["cat", "made"], setup=["greet > made"])

    assert output(shoal, file) == ["greetings"]


def test_what_is_seen_is_said_before_and_after(shoal: Shoal, repo: Path, tmp_path: Path) -> None:
    tools = tool_in(tmp_path / "tools/bin").parent
    file = written(repo, str(tools), command=["true"])

    for said in (shoal("run", file, "--dry-run"), shoal("run", file)):
        assert f"all agents may run programs in {tools}" in said.out + said.err, said


def test_what_must_stay_hidden_is_refused_at_its_place(shoal: Shoal, repo: Path, tmp_path: Path) -> None:
    home = tmp_path / "home/me"
    for name in (".ssh", ".cargo/bin", ".config/gh", "file"):
        (home / name).mkdir(parents=True)
    (home / ".cargo/credentials.toml").write_text("token")
    (tmp_path / "out").symlink_to(home / ".ssh")
    (tmp_path / "other/.gnupg").mkdir(parents=True)
    (tmp_path / "plain").write_text("")
    expected = {
        "/nowhere": "it does not exist",
        str(tmp_path / "plain"): "it is not a folder",
        "~": "it contains your home",
        str(home.parent): "it contains your home",
        "/": "it contains your home",
        "/etc": "/etc stays hidden",
        "/etc/ssl": "/etc stays hidden",
        "/proc/1": "/proc stays hidden",
        "/home": "it contains your home" if _real_home().is_relative_to("/home") else "/home stays hidden",
        "/run": "/run stays hidden",
        "~/.ssh": f"credentials lie in {home}/.ssh",
        "~/.config": f"credentials lie in {home}/.config/gh",
        "~/.cargo": f"credentials lie in {home}/.cargo/credentials.toml",
        str(tmp_path / "out"): f"credentials lie in {home}/.ssh",
        str(tmp_path / "other"): f"credentials lie in {tmp_path}/other/.gnupg",
    }

    said = shoal("run", written(repo, *expected, command=["true"]), HOME=str(home))

    lines, text = said.err.splitlines(), (repo / "p.yaml").read_text()
    assert (said.code, len(lines)) == (2, len(expected)), said
    for (path, why), line in zip(expected.items(), lines, strict=True):
        assert line.startswith(f"p.yaml:1:{text.index(json.dumps(path)) + 1}: `toolchains`: "), line
        assert why in line
    assert not (repo / ".shoal").exists(), "before anything was made"
    assert shoal("run", written(repo, "~/.cargo/bin", command=["true"]), HOME=str(home)).code == 0


@pytest.mark.parametrize("below", ["", "..", ".git", ".git/hooks", ".shoal", "../link"])
def test_the_repository_and_what_is_ours_is_refused(shoal: Shoal, repo: Path, below: str) -> None:
    (repo / ".shoal").mkdir()
    (repo.parent / "link").symlink_to(repo / ".git")
    folder = os.path.normpath(repo / below)

    said = shoal("run", written(repo, folder, command=["true"]))

    assert said.code == 2, said
    assert said.err.startswith(f"shoal: p.yaml:1:29: `toolchains`: {folder} cannot be shown to agents: {repo}"), said
    assert shoal("status").code == 2, "no run is known"


def test_a_folder_of_the_repository_may_hold_programs(shoal: Shoal, repo: Path) -> None:
    tool_in(repo / "untracked/bin")

    assert output(shoal, written(repo, str(repo / "untracked"), command=["sh", "-c", "greet"])) == ["greetings"]


def test_what_the_box_has_of_its_own_is_refused(shoal: Shoal, repo: Path) -> None:
    said = shoal("run", written(repo, "/var/tmp", command=["true"]))

    assert said.code == 2, said
    assert "p.yaml:1:29: `toolchains`: /var/tmp cannot be made visible" in said.err
