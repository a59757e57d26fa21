"""A session directory is reused only if nothing was changed, and without a trace of its last session."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.model.status import Status
from shoal.workspaces.mount import list_mounts
from tests.acting import assert_nothing_left, ran, step

LOOK = 'find "$HOME" "$TMPDIR" "${DATABASE_URL#sqlite:///}" 2>/dev/null | sort; stat -c "born %i %w" "$HOME"'


async def in_turn(repo: Path, script: str, wall: str) -> list[str]:
    """Run three agents one after the other, and give what each said."""
    one, two, three = (step(name, script) for name in ("one", "two", "three"))
    report = await ran(repo, one, replace(two, needs=("one",)), replace(three, needs=("two",)), sandbox=wall)
    assert report.status is Status.SUCCEEDED, report
    assert_nothing_left(repo)
    return [done.worker_results[0].output for done in report.steps]


# Without a sandbox only root can mount an overlay; a worktree is never reused this way.
WALLS = ("none", "bubblewrap") if os.geteuid() == 0 else ("bubblewrap",)


def folders(said: list[str]) -> int:
    """Say how many different folders the agents had for a home."""
    return len({line for one in said for line in one.splitlines() if line.startswith("born ")})


@pytest.mark.parametrize("wall", WALLS)
async def test_an_untouched_folder_serves_the_next_agent_under_its_own_names(repo: Path, wall: str) -> None:
    script = f'{LOOK}; git symbolic-ref --short HEAD; git rev-parse HEAD; cat "$SHOAL_PROMPT_FILE"; echo "$HOME"'

    said = await in_turn(repo, script, wall)

    assert folders(said) == 1, "the same folder"
    assert len({one.splitlines()[-1] for one in said}) == 3, "at a place of its own"
    branches = {line for one in said for line in one.splitlines() if line.startswith("agent/")}
    assert len(branches) == 3, "on a branch of its own"


@pytest.mark.parametrize(
    "touch",
    [
        'echo secret > "$HOME/.token"',
        'echo secret > "$TMPDIR/left"; rm "$TMPDIR/left"',
        'echo "[alias]" >> "$HOME/.gitconfig"',
        'chmod 700 "$HOME"',
        'ln "$HOME/.gitconfig" "$HOME/other"; rm "$HOME/other"',
        "git config core.pager cat",
        "git branch another",
        'touch "${DATABASE_URL#sqlite:///}"',
    ],
)
async def test_what_one_agent_touched_no_other_gets(repo: Path, touch: str) -> None:
    said = await in_turn(repo, f'{LOOK}; git config core.pager; cat "$HOME/.gitconfig"; {touch}', "bubblewrap")

    assert folders(said) == 3, "a fresh folder each"
    assert not any(".token" in one or "alias" in one or "cat" in one.split() for one in said)


if os.geteuid() == 0:
    MOUNT = 'stat -c "mount %i %w" .'

    @pytest.mark.parametrize("wall", WALLS)
    async def test_a_workspace_that_nobody_changed_stays_mounted_for_the_next(repo: Path, wall: str) -> None:
        said = await in_turn(
            repo, f"{MOUNT}; pwd; GIT_OPTIONAL_LOCKS=0 git status --short; git rev-parse --show-toplevel", wall
        )

        assert len({one.splitlines()[0] for one in said}) == 1, "the same mount"
        places = [Path(one.splitlines()[1]) for one in said]
        assert [place.parent.name for place in places] == ["one", "two", "three"]
        assert all(one.splitlines()[2:] == [str(place)] for one, place in zip(said, places, strict=True))

    @pytest.mark.parametrize(
        ("wall", "touch"),
        [
            ("bubblewrap", "echo x > file; rm file"),
            ("bubblewrap", "touch ."),
            ("none", "mkdir deep; rmdir deep"),
            ("none", "cp .git other; mv other .git"),
            ("none", 'echo secret > "$HOME/.token"'),
        ],
    )
    async def test_a_workspace_that_somebody_changed_is_nobodys_again(repo: Path, wall: str, touch: str) -> None:
        said = await in_turn(repo, f"{MOUNT}; find . -name file -o -name deep -o -name other; {touch}", wall)

        assert len(set(said)) == 3, "a fresh mount each"
        assert all(len(one.splitlines()) == 1 for one in said), "with nothing in it"

    async def test_who_is_left_running_does_not_reach_the_next_workspace(repo: Path) -> None:
        linger = "setsid sh -c 'sleep 0.2; while :; do echo x > caught; done' >/dev/null 2>&1 &"
        one = step("one", f"{linger} true")
        two = replace(step("two", "sleep 0.4; ls"), needs=("one",))

        report = await ran(repo, one, two, sandbox="none")

        assert "caught" not in report.steps[1].worker_results[0].output
        assert_nothing_left(repo)

    @pytest.mark.parametrize("needs", [(), ("quick",)], ids=["put away", "in use again"])
    async def test_what_was_mounted_when_shoal_was_killed_goes_with_the_next_start(
        repo: Path, needs: tuple[str, ...]
    ) -> None:
        here = Path(__file__).parents[2]
        env = {**os.environ, "PYTHONPATH": f"{here}:{here / 'src'}"}
        argv = [sys.executable, "-c", KILLED, str(repo), *needs]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env, cwd=here) as process:
            assert process.stdout is not None
            assert "ready" in process.stdout.readline()
            assert list_mounts(repo), "both of them"
            process.send_signal(signal.SIGKILL)

        await ran(repo, step("next", "true"))

        assert list_mounts(repo) == []
        assert_nothing_left(repo)

    KILLED = """
import asyncio, sys
from dataclasses import replace
from pathlib import Path
from tests.acting import ran, step

ended = set()

def told(recorded):
    event = type(recorded.event).__name__
    if event == "SessionEnded":
        ended.add(recorded.event.step)
    if event == "Output" and ended == {"quick"}:
        print("ready", flush=True)

slow = step("slow", "while :; do echo here; sleep 0.05; done")
steps = (step("quick", "true"), replace(slow, needs=tuple(sys.argv[2:])))
asyncio.run(ran(Path(sys.argv[1]), *steps, sandbox="none", listen=told))
"""
