"""A private folder that serves again: only where nobody changed anything, and without a trace of who had it before."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.model.status import Status
from tests.acting import assert_nothing_left, ran, step

LOOK = 'find "$HOME" "$TMPDIR" "${DATABASE_URL#sqlite:///}" 2>/dev/null | sort; stat -c "born %i %w" "$HOME"'


async def in_turn(repo: Path, script: str, wall: str) -> list[str]:
    """Run three agents one after the other, and give what each said."""
    one, two, three = (step(name, script) for name in ("one", "two", "three"))
    report = await ran(repo, one, replace(two, needs=("one",)), replace(three, needs=("two",)), sandbox=wall)
    assert report.status is Status.SUCCEEDED, report
    assert_nothing_left(repo)
    return [done.worker_results[0].output for done in report.steps]


# Without a wall only root can mount an overlay; a worktree is never lent on.
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
