"""What an agent can reach from inside, tried by the agent itself, in each sandbox and with each strategy."""

import asyncio
import os
import socket
import tempfile
from pathlib import Path

import pytest

from shoal.errors import Unavailable, UnknownName
from shoal.model.policy import Network
from shoal.model.status import Status
from tests.acting import assert_nothing_left, fingerprint, paths_in, ran, shown, step, worked
from tests.conftest import git, make_repo

STRATEGIES = ["overlay", "worktree"]


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_the_users_repository_cannot_be_read_or_written(repo: Path, strategy: str) -> None:
    before = fingerprint(repo)
    script = f"""
    for path in {repo}/.git {repo}/.git/HEAD {repo}/.git/config {repo}/.git/refs {repo}/.git/index {repo}/.git/hooks \\
        {repo}/README.md {repo}/d0 {repo}/.shoal/ledger.db {repo}/.shoal/base; do
      [ -e $path ] && echo "seen $path"
    done
    for object in $(find {repo}/.shoal/objects -type f | head -5); do true > $object && echo "wrote $object"; done
    for folder in $(find {repo}/.shoal/objects -type d); do touch $folder/x && echo "wrote $folder"; done
    mkdir {repo}/.git/hooks && echo made hooks
    echo x > {repo}/x && echo wrote checkout
    ls -A {repo}; find {repo}/.shoal/objects -name "*.pack" | wc -l
    """

    result = await worked(repo, script, strategy=strategy)

    assert result.output.split() == [".shoal", "1"], result.output
    assert fingerprint(repo) == before
    assert_nothing_left(repo)


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_agents_cannot_see_each_other(repo: Path, strategy: str) -> None:
    """The second worker looks for the first one's workspace, home and processes, while that one works."""
    script = """
    echo "secret-$SHOAL_WORKER_INDEX" > mine
    root=${SHOAL_WORKSPACE_PATH%/worker_*}; boxes=${HOME%/*/own/home}
    [ "$SHOAL_WORKER_INDEX" = 0 ] && { sleep 1.5; exit 0; }
    sleep 0.5; ls $root $boxes; ls /proc | grep -c '^[0-9]'; ls $root/worker_0 && echo seen; echo x > $root/worker_0/mine && echo wrote
    """

    report = await ran(repo, step("work", script, 2), strategy=strategy)

    first, second = report.steps[0].worker_results
    assert shown(repo, first, "mine") == "secret-0"
    root = Path(first.workspace).parent
    boxes = repo / ".shoal/boxes"
    seen = second.output.split()
    assert seen[:4] == [f"{boxes}:", second.session, f"{root}:", "worker_1"]
    assert len(seen) == 5
    assert int(seen[4]) < 8


async def test_the_hosts_home_and_its_sockets_do_not_exist(repo: Path) -> None:
    home = Path.home()
    leads = repo.relative_to(home).parts[0] if repo.is_relative_to(home) else "-"  # the way to the workspace itself
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/socket")
        listener.listen()
        script = f"""
        ls -A {home} 2>/dev/null | grep -vx '{leads}'; ls -A {folder} 2>/dev/null
        find / -xdev -type s 2>/dev/null; find /run /var/run /tmp /var/tmp -type s 2>/dev/null
        ls -A /run /home /root /mnt /srv 2>/dev/null; cat /etc/shadow 2>/dev/null
        """
        result = await worked(repo, script)

    assert result.output == ""


@pytest.mark.parametrize("network", [Network.NONE, Network.HOST])
async def test_abstract_sockets_of_the_host_cannot_be_reached(repo: Path, network: Network) -> None:
    name = f"\0shoal-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        program = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0{name[1:]}'); print('connected')"
        report = await ran(repo, step("work", f'python3 -c "{program}" 2>/dev/null', network=network))

    assert report.steps[0].worker_results[0].output == ""


async def test_without_a_network_nothing_connects_and_with_the_hosts_it_does(repo: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"python3 -c \"import socket; socket.create_connection(('127.0.0.1', {port}), 3); print('connected')\" 2>/dev/null"
        shut = await ran(repo, step("work", script))
        free = await ran(repo, step("work", script, network=Network.HOST))

    assert shut.steps[0].worker_results[0].output == ""
    assert free.steps[0].worker_results[0].output == "connected\n"
    assert any("host's network" in note for note in free.notes)


async def test_the_pointer_to_the_gitdir_cannot_be_replaced(repo: Path) -> None:
    script = "rm -f .git; mv .git x; ln -sf /tmp .git; echo 'gitdir: /tmp' > .git; git rev-parse --git-dir; echo w > w"

    result = await worked(repo, script)

    assert result.output.strip() == str(repo / ".shoal/boxes" / result.session / "git")
    assert shown(repo, result, "w") == "w"


@pytest.mark.parametrize("strategy", ["worktree", "directory", *(["overlay"] if os.geteuid() == 0 else [])])
async def test_landlock_by_name_holds_files_and_says_its_gaps(repo: Path, strategy: str) -> None:
    before = fingerprint(repo)
    script = f"""
    cat {repo}/README.md; echo x > {repo}/x; ls {repo}; ls {Path.home()}; echo x > /tmp/shoal-x; echo w > w
    git add w; git commit -qm w; git log --oneline | wc -l; (setsid sleep 4567 &); kill -9 {os.getpid()}
    """

    report = await ran(repo, step("work", script), strategy=strategy, sandbox="landlock")

    result = report.steps[0].worker_results[0]
    assert result.output.strip() == "2"
    assert shown(repo, result, "w") == "w"
    assert report.wall == "landlock"
    assert report.notes
    assert not Path("/tmp/shoal-x").exists()
    assert fingerprint(repo) == before
    assert_nothing_left(repo)


@pytest.mark.parametrize("strategy", ["worktree", *(["overlay"] if os.geteuid() == 0 else [])])
async def test_no_wall_by_name_still_keeps_the_work_apart_and_says_so(repo: Path, strategy: str) -> None:
    report = await ran(repo, step("work", "echo $SHOAL_WORKER_INDEX > w", 2), strategy=strategy, sandbox="none")

    assert [shown(repo, result, "w") for result in report.steps[0].worker_results] == ["0", "1"]
    assert any("nothing" in note for note in report.notes)
    assert_nothing_left(repo)


@pytest.mark.parametrize("sandbox", ["landlock", "none"])
async def test_a_weaker_wall_ends_survivors_and_stubborn_agents_too(repo: Path, sandbox: str) -> None:
    script = "trap '' TERM; echo half > half; (trap '' TERM; setsid sleep 4568 &); while :; do sleep 0.2; done"

    report = await ran(repo, step("work", script, timeout=1.0), strategy="worktree", sandbox=sandbox)

    result = report.steps[0].worker_results[0]
    assert result.status is Status.TIMED_OUT
    assert shown(repo, result, "half") == "half"
    assert await _gone("sleep\0004568")


async def _gone(words: str) -> bool:
    for _ in range(50):
        lines = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                lines.append(path.read_text(errors="replace"))
            except OSError:
                continue
        if not any(line.startswith(words) for line in lines):
            return True
        await asyncio.sleep(0.05)
    return False


async def test_an_unknown_wall_is_named_with_the_nearest(repo: Path) -> None:
    with pytest.raises(UnknownName, match="bubblewrap"):
        await worked(repo, "true", sandbox="bublewrap")


async def test_a_wall_that_cannot_be_had_is_refused_and_nothing_starts(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.sessions import host_probe as ground

    monkeypatch.setenv("PATH", "/nonexistent")
    ground._host.cache_clear()
    try:
        with pytest.raises(Unavailable, match="apt install bubblewrap") as raised:
            await worked(repo, "echo w > w")
    finally:
        monkeypatch.undo()
        ground._host.cache_clear()

    assert raised.value.exit_code == 5
    assert git(repo, "branch", "--list", "agent/*") == ""


async def test_a_program_that_is_not_there_is_refused_before_anything_starts(repo: Path) -> None:
    from shoal.model.agent import AgentSpec
    from shoal.model.plan import Step
    from shoal.model.resolved_task import ResolvedTask

    agent = AgentSpec(name="x", adapter="command", command=("no-such-agent-client",))
    with pytest.raises(Unavailable, match="not on PATH"):
        await ran(repo, Step(name="work", task=ResolvedTask(name="work", prompt="", agent=agent)))

    assert not (repo / ".shoal").exists()


ATTACK = Path(__file__).with_name("attacks") / "pid1.txt"


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_possessed_pid_1_does_not_outlive_its_box(repo: Path, strategy: str) -> None:
    (repo / "attack").write_bytes(ATTACK.read_bytes())
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "attack")

    result = await worked(repo, "python3 attack; echo w > w", strategy=strategy)

    assert "eventfd" in result.output
    assert _boxes_of(repo) == []


def _boxes_of(repo: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            line, mounts = path.read_text(errors="replace"), path.with_name("mountinfo").read_text()
        except OSError:
            continue
        is_exiting = int(line.rpartition(")")[2].split()[6]) & 4
        if str(repo / ".shoal/boxes") in mounts and not is_exiting and "pytest" not in line:
            found.append(line)
    return found


async def test_a_gitdir_cannot_become_a_link_to_another_repository(repo: Path, tmp_path: Path) -> None:
    other = make_repo(tmp_path / "other")
    (other / "secret").write_text("TOPSECRET")
    git(other, "add", "-A")
    git(other, "commit", "-qm", "secret")
    script = f'd=$(git rev-parse --git-dir); rm -rf "$d"; ln -s {other}/.git "$d"; rm -rf "$d/objects"; ln -s {other}/.git/objects "$d/objects"; cp -r {other}/.git/HEAD "$d/HEAD"; echo w > w'

    result = await worked(repo, script)

    assert shown(repo, result, "w") == "w"
    assert result.kept_refs == ()
    blob = git(other, "rev-parse", "HEAD:secret")
    assert blob not in git(repo, "cat-file", "--batch-all-objects", "--batch-check")


async def test_what_was_committed_is_kept_though_a_rule_ignores_it(repo: Path) -> None:
    script = "echo build/ > .gitignore; mkdir build; echo x > build/x; git add -f build/x; git commit -qm x; echo y > build/y"

    result = await worked(repo, script)

    assert {"build/x", ".gitignore"} <= paths_in(repo, result)
    assert "build/y" not in paths_in(repo, result)


@pytest.mark.parametrize("sandbox", ["landlock", "bubblewrap"])
async def test_a_shut_folder_is_kept_or_named_and_stays(repo: Path, sandbox: str) -> None:
    result = await worked(repo, "mkdir z; echo work > z/f; chmod 000 z", sandbox=sandbox, strategy="worktree")

    if result.branch is not None:
        assert shown(repo, result, "z/f") == "work"
    else:
        assert result.status is Status.FAILED
        assert result.unkept == ("z/",)
        assert result.raw is not None


async def test_a_git_that_dies_is_not_no_changes(repo: Path) -> None:
    macros = 'i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo "[attr]m$i m$((i+1))"; done > .gitattributes; echo "* m1" >> .gitattributes'

    result = await worked(repo, f"echo work > f; {macros}; truncate -s 4T .gitignore")

    kept = result.branch is not None and shown(repo, result, "f") == "work"
    assert kept or (result.raw is not None and result.status is Status.FAILED)
