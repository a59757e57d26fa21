"""Shoal's own work on what an agent left has bounds: past them the files are kept without what is dear, and that is named."""

import asyncio
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import proc
from shoal.limits.choose import choose
from shoal.model.command import Command
from shoal.model.limits import WORK_BOUNDS, ResourceLimits, WorkBounds
from shoal.model.plan import Plan
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.runs.request import RunRequest
from shoal.runs.run import run
from tests.acting import assert_nothing_left, paths_in, shown, step, worked
from tests.conftest import git
from tests.sessions.bombs import NESTED, PATHS, STARS, STATE, ZEROS, as_python, of

SQUASHED = "without its own history"
PLAIN = "too expensive to apply"


async def bounded(
    repo: Path, script: str, bounds: WorkBounds = WORK_BOUNDS, sandbox: str = "bubblewrap"
) -> WorkerResult:
    """Run one agent whose work is kept within *bounds*."""
    request = RunRequest(folder=repo, environ=os.environ, sandbox=sandbox, grace=0.5, bounds=bounds)
    report = await run(Plan(name="t", steps=(step("work", script),)), request, stop=asyncio.Event())
    return report.steps[0].worker_results[0]


@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock"])
async def test_a_bomb_of_paths_is_left_out_and_the_work_is_on_its_branch(repo: Path, sandbox: str) -> None:
    script = as_python(PATHS, levels=4)

    result = await bounded(repo, script, WorkBounds(history_memory_mb=16), sandbox)

    assert result.status is Status.SUCCEEDED, str(result)
    assert (result.files_changed, result.kept_refs, result.raw) == (1, (), None)
    assert shown(repo, result, "w.txt") == "work"
    assert git(repo, "rev-list", "--count", f"main..{result.branch}") == "1"
    assert SQUASHED in result.notes[0], result.notes
    assert_nothing_left(repo)


async def test_commits_that_unpack_to_too_much_are_left_out(repo: Path) -> None:
    script = as_python(ZEROS, size=5 << 20, count=4)

    result = await bounded(repo, script, WorkBounds(unpacked_mb=16))
    whole = await bounded(repo, script, WorkBounds(unpacked_mb=32))

    assert result.files_changed == 1, result
    assert SQUASHED in result.notes[0]
    assert whole.notes == ()
    assert git(repo, "rev-list", "--count", f"main..{whole.branch}") == "2", (
        "within its bounds a history is taken along"
    )


@pytest.mark.deep
@pytest.mark.parametrize(("name", "attribute"), [(".gitignore", ""), (".gitattributes", " -text")])
async def test_a_pattern_that_takes_minutes_costs_seconds_and_no_work(repo: Path, name: str, attribute: str) -> None:
    script = of(STARS, depth=400, name=name, attribute=attribute)

    result = await bounded(repo, script, WorkBounds(rules_cpu=1))

    assert result.status is Status.SUCCEEDED, str(result)
    assert shown(repo, result, "a/" * 400 + "f") == "deep"
    assert {name, "w.txt"} <= paths_in(repo, result)
    assert git(repo, "log", "--format=%s", f"main..{result.branch}").splitlines()[-1] == "w", "with its own history"
    assert PLAIN in result.notes[0]


async def test_rules_that_fill_the_memory_end_git_and_not_the_host(repo: Path) -> None:
    result = await bounded(repo, as_python(NESTED, depth=20, name=".gitignore"), WorkBounds(seal_memory_mb=96))

    assert result.status is Status.SUCCEEDED, str(result)
    assert shown(repo, result, "a/" * 20 + "leaf") == "work"
    assert PLAIN in result.notes[0]


@pytest.mark.parametrize("strategy", ["overlay", "worktree"])
async def test_without_the_agents_rules_those_of_the_base_hold(repo: Path, strategy: str) -> None:
    (repo / ".gitignore").write_text("build/\n*.log\n!keep.log\n")
    (repo / "sub").mkdir()
    (repo / "sub/.gitignore").write_text("/x\nsecret\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "rules")
    script = """
    mkdir -p build sub/deep; echo o > build/o; echo l > a.log; echo k > keep.log; echo x > sub/x; echo s > sub/deep/secret
    echo d > sub/deep/x; echo r >> README.md; rm d0/f0.txt; echo p > run; chmod +x run; ln -s README.md link; rm -r d1; echo f > d1
    echo n > 'new
line'; ln -s x 'new
link'; printf c > "$(printf 'end\\r')"; echo o > '"odd'; truncate -s 100G .gitignore"""

    result = await worked(repo, script, strategy=strategy)

    assert result.status is Status.SUCCEEDED, str(result)
    compare = ["git", "diff-tree", "-r", "--no-renames", "-z", "main", str(result.branch)]
    entries = subprocess.check_output(compare, cwd=repo).decode().split("\0")
    changed = {path: (facts.split(" ")[1], facts[-1]) for facts, path in zip(entries[::2], entries[1::2], strict=False)}
    gone = {path for path in changed if changed[path][1] == "D"}
    assert changed["README.md"] == ("100644", "M")
    assert changed["run"] == ("100755", "A")
    assert changed["link"] == ("120000", "A")
    assert changed.keys() - gone == {
        *("README.md", "run", "link", "d1", "keep.log", "sub/deep/x"),
        *('"odd', "new\nline", "new\nlink", "end\r"),
    }
    assert "d0/f0.txt" in gone
    assert set(result.unkept) == {".gitignore"}
    assert PLAIN in result.notes[0]


@pytest.mark.deep
async def test_what_lies_deeper_than_git_goes_is_named_without_the_agents_rules(repo: Path) -> None:
    deep = "import os\nos.mkdir('deep')\nos.chdir('deep')\nfor _ in range(2100): os.mkdir('d'); os.chdir('d')\nopen('x', 'w')"
    script = f"echo w > w.txt; truncate -s 100G .gitignore; python3 -c {shlex.quote(deep)}"

    result = await worked(repo, script)
    subprocess.run(["rm", "-rf", repo / ".shoal/boxes"], check=True)  # deeper than Python's own removal goes

    assert shown(repo, result, "w.txt") == "w"
    assert [name for name in result.unkept if name.startswith("deep/d/d/")], result.unkept
    assert PLAIN in result.notes[0]


@pytest.mark.parametrize("levels", [0, 4])
async def test_no_kept_ref_holds_what_is_shoals_own(repo: Path, levels: int) -> None:
    """A check that died was taken for one that passed."""
    result = await bounded(repo, as_python(STATE, levels=levels), WorkBounds(history_memory_mb=16))

    assert (result.status, result.kept_refs) == (Status.SUCCEEDED, ()), result
    assert git(repo, "for-each-ref", "refs/shoal/kept") == ""
    assert "left out" in result.notes[0]


async def test_a_history_that_takes_too_long_is_left_out(repo: Path) -> None:
    result = await bounded(repo, "echo c > c; git add c; git commit -qm c", WorkBounds(history_seconds=0.001))

    assert shown(repo, result, "c") == "c"
    assert SQUASHED in result.notes[0]


async def test_a_history_that_is_left_out_leaves_no_word_of_a_commit_that_is_not_there(repo: Path) -> None:
    script = "git commit -q --allow-empty -m a; git reset -q --hard HEAD~"

    result = await bounded(repo, script, WorkBounds(history_seconds=0.001))

    assert (result.status, result.commit) == (Status.NO_CHANGES, None), result
    assert not any("as one commit" in note for note in result.notes), result


async def test_many_bytes_take_as_long_as_they_need_within_the_bounds(repo: Path) -> None:
    """What takes git long is told apart: bytes to hash keep the agent's rules in force."""
    script = "echo '*.o' > .gitignore; head -c 90M /dev/zero | tr '\\0' x | split -b 30M - big; echo o > a.o"

    result = await bounded(repo, script, WorkBounds(rules_cpu=1))

    assert (result.status, result.notes) == (Status.SUCCEEDED, ()), result
    assert "a.o" not in paths_in(repo, result)
    assert "bigaa" in paths_in(repo, result)


@pytest.mark.deep
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("script", "said"),
    [
        pytest.param(as_python(PATHS, levels=11), SQUASHED, id="paths"),
        pytest.param(as_python(ZEROS, size=99 << 20, count=400), SQUASHED, id="zeros"),
        pytest.param(as_python(NESTED, depth=150, name=".gitignore"), PLAIN, id="nested"),
        pytest.param(of(STARS, depth=400, name=".gitignore", attribute=""), PLAIN, id="stars"),
    ],
)
async def test_the_whole_attacks_within_the_bounds_that_users_have(repo: Path, script: str, said: str) -> None:
    """In a group of its own, so that a bound that does not hold cannot take the machine."""
    argv = (
        str(Path(sys.executable).parent / "shoal"),
        "run",
        "--json",
        "--task",
        "go",
        "--command",
        f"sh -c {shlex.quote(script)}",
    )
    command = Command(argv=argv, cwd=repo, env=os.environ)
    with (await choose()).group("deep", ResourceLimits(memory_mb=2048)) as group:
        done = await proc.run(group.wrap(command), timeout=170)

    (result,) = json.loads(done.stdout)["steps"][0]["worker_results"]
    assert result["status"] == "succeeded", result
    assert said in result["notes"][0], result
    assert group.breach() is None
    assert (group.usage().cpu_seconds or 0) < 30
