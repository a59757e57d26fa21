"""The configuration of seed 002, each key with a value that is not the default, and what it changes."""

import asyncio
from pathlib import Path

import pytest

from shoal import AgentCoordinator
from tests.cli.flows import ran
from tests.conftest import git

OBEY = {"adapter": "command", "command": ["sh", "-c", 'eval "$(head -n 1)"']}
ROOT = Path(__file__).parents[2]


def test_five_agents_at_once_unless_another_number_is_said(repo: Path) -> None:
    assert AgentCoordinator().max_concurrent == 5
    assert AgentCoordinator(max_concurrent=4).max_concurrent == 4
    assert AgentCoordinator(repo, config={"max_concurrent_agents": 3}).max_concurrent == 3


async def test_as_many_agents_as_the_configuration_says_run_at_once(repo: Path, tmp_path: Path) -> None:
    """Three of six agents meet, and each sees at most three: a fourth would have begun beside them."""
    config = {"max_concurrent_agents": 3, "sandbox": "none", "network": "host"}
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    for folder in (begun, ended):
        folder.mkdir()
    count = f"$(($(ls {begun} | wc -l) - $(ls {ended} | wc -l)))"
    script = (
        f"touch {begun}/$SHOAL_SESSION; until [ $(ls {begun} | wc -l) -ge 3 ]; do sleep 0.02; done; "
        f"echo {count}; touch {ended}/$SHOAL_SESSION"
    )

    results = await AgentCoordinator(repo, config=config, agent=OBEY).run_agents([script] * 6)

    assert {result.status.value for result in results} == {"no_changes"}
    assert max(int(result.output) for result in results) == 3


async def test_three_sandboxed_agents_work_at_the_same_time(repo: Path) -> None:
    """Each is answered when all three have called, so one after the other would never end."""
    waiting: list[asyncio.StreamWriter] = []

    async def answer_when_all_are_here(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting.append(writer)
        if len(waiting) == 3:
            for caller in waiting:
                caller.write(b"go\n")
                caller.close()

    server = await asyncio.start_server(answer_when_all_are_here, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    call = f'import socket; print(socket.create_connection(("127.0.0.1", {port}), 60).recv(9).decode().strip())'
    async with server:
        results = await AgentCoordinator(repo, 3, agent=OBEY, network="host").run_agents(
            [f"python3 -c '{call}' > heard.txt"] * 3
        )

    assert [result.status.value for result in results] == ["succeeded"] * 3, results
    assert [git(repo, "show", f"{result.branch}:heard.txt") for result in results] == ["go"] * 3


def test_resource_limits_of_the_configuration_are_held(repo: Path) -> None:
    config = {"resource_limits": {"memory_mb": 100, "cpu_percent": 20, "time_seconds": 3}}
    hog = "python3 -c 'held = bytearray(400 << 20); import time; time.sleep(30)'"
    spin = "timeout 30 sh -c 'while :; do :; done'"

    with AgentCoordinator(repo, config=config, agent=OBEY, grace=0.2) as coordinator:
        greedy, busy = coordinator.run_agents([hog, spin])
        limits = coordinator.report.limits

    assert "100 MB memory, 20 % cpu, 3 s" in limits
    assert (greedy.status.value, greedy.limit) == ("over_limit", "memory")
    assert (busy.status.value, busy.limit) == ("timed_out", "time")
    if not limits.startswith("polling"):  # which cannot hold CPU, as docs/limits.md says
        assert busy.resources["cpu_seconds"] < 1.5


def test_auto_merge_in_a_file(repo: Path) -> None:
    steps = "steps: [{name: a, command: 'echo x > a.txt'}, {name: b, command: 'echo y > b.txt'}]"
    head = git(repo, "rev-parse", "main")

    done = ran(repo, steps, runtime="sandbox: none, auto_merge: true")

    merge = done.report["merge"]
    assert done.said.code == 0, done.said.err
    assert [result["status"] for result in merge["results"]] == ["merged", "merged"]
    assert [git(repo, "show", f"{merge['branch']}:{name}.txt") for name in "ab"] == ["x", "y"]
    assert git(repo, "rev-parse", "main") == head


@pytest.mark.parametrize("auto_merge", [True, False])
def test_auto_merge_in_a_configuration(repo: Path, auto_merge: bool) -> None:
    config = {"auto_merge": auto_merge, "sandbox": "none"}

    with AgentCoordinator(repo, config=config, agent=OBEY) as coordinator:
        coordinator.run_agents(["echo x > a.txt", "echo y > b.txt", "echo z > c.txt; exit 1"])
        run = coordinator.report.run

    merged = git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/shoal").split()
    assert merged == ([f"shoal/{run}"] if auto_merge else [])
    if auto_merge:
        changed = git(repo, "diff", "--name-only", "main", f"shoal/{run}").split()
        assert changed == ["a.txt", "b.txt"], "what failed is left out"


@pytest.mark.parametrize(("strategy", "is_linked"), [("worktree", True), ("directory", False)])
def test_isolation_strategy_of_the_configuration(repo: Path, strategy: str, is_linked: bool) -> None:
    config = {"isolation_strategy": strategy, "cleanup_on_complete": False}

    (result,) = AgentCoordinator(repo, config=config, agent=OBEY).run_agents_sync(["pwd; echo x > x.txt"])

    workspace = Path(result.output.strip())
    assert workspace == Path(str(result.workspace))
    assert (workspace / "x.txt").read_text() == "x\n"
    assert (str(workspace) in git(repo, "worktree", "list")) == is_linked
    assert not (workspace / "x.txt").is_symlink()
    assert not (repo / "x.txt").exists()


@pytest.mark.parametrize("is_cleaned", [True, False])
def test_cleanup_on_complete(repo: Path, is_cleaned: bool) -> None:
    config = {"cleanup_on_complete": is_cleaned, "isolation_strategy": "worktree", "sandbox": "none"}
    (of_python,) = AgentCoordinator(repo, config=config, agent=OBEY).run_agents_sync(["echo x > x.txt"])
    done = ran(
        repo,
        "steps: [{name: a, command: 'echo x > x.txt'}]",
        runtime=f"sandbox: none, isolation_strategy: worktree, cleanup_on_complete: {str(is_cleaned).lower()}",
    )
    workspaces = [Path(str(of_python.workspace)), Path(done["a"]["worker_workspaces"][0])]

    assert [workspace.exists() for workspace in workspaces] == [not is_cleaned] * 2
    listed = git(repo, "worktree", "list")
    assert [str(workspace) in listed for workspace in workspaces] == [not is_cleaned] * 2
    assert git(repo, "show", f"{of_python.branch}:x.txt") == done.shown("a", "x.txt") == "x"


def test_the_documentation_shows_each_pattern() -> None:
    page = (ROOT / "docs/workflows.md").read_text()

    for heading, example, program in (
        ("Independent tasks", "independent-tasks.yaml", "independent_tasks.py"),
        ("Parallel decomposition", "parallel-decomposition.yaml", "decomposition.py"),
        ("A pipeline", "pipeline.yaml", "pipeline.py"),
    ):
        section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        for path in (f"examples/{example}", f"examples/python/{program}"):
            assert f"(../{path})" in section, (heading, path)
            assert (ROOT / path).is_file()
