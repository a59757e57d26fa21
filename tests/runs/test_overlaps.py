"""Overlaps are found as sessions end: all pairs, within bounds, and at nobody's expense."""

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import AgentCoordinator
from shoal.git.diff import find_meeting_pairs
from shoal.model.events import OverlapSeen, Recorded
from shoal.model.merge import Overlap
from shoal.runs import overlaps
from shoal.runs.overlaps import TouchedPaths

PATHS = st.lists(st.sampled_from("a b"), min_size=1, max_size=3).map("/".join)


@given(st.dictionaries(st.sampled_from(list("0123456")), st.lists(PATHS, max_size=4, unique=True)))
def test_pairs_are_the_same_whether_found_one_by_one_or_at_once(changed: dict[str, list[str]]) -> None:
    places = TouchedPaths()

    found = {(other, name) for name, paths in changed.items() for other in places.add(name, paths)}

    assert found == set(find_meeting_pairs(changed)[0])


def test_deep_folders_fill_no_memory() -> None:
    """300 files, each below 1,900 folders of its own: to name all those would take a gigabyte."""
    deep = [f"{number}/" + "a/" * 1900 + "f" for number in range(300)]
    places = TouchedPaths()

    tracemalloc.start()
    try:
        places.add("one", deep)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert places.add("other", [deep[0], "0"]) == ["one"]
    assert peak < 64 * 2**20


def script(*lines: str) -> dict[str, object]:
    return {"adapter": "command", "command": ["sh", "-c", "\n".join(lines)]}


async def seen_by(repo: Path, commands: list[str]) -> list[Overlap]:
    heard: list[OverlapSeen] = []

    def listen(recorded: Recorded) -> None:
        if isinstance(recorded.event, OverlapSeen):
            heard.append(recorded.event)

    async with AgentCoordinator(repo, 5, sandbox="none", listen=listen) as task_run:
        tasks = [{"prompt": "x", "agent": script(command)} for command in commands]
        results = await task_run.run_agents(tasks)
    assert all(one.status.is_good for one in results), results
    return [one.overlap for one in heard]


async def test_a_program_hears_of_them_too(repo: Path) -> None:
    found = await seen_by(repo, ["echo 1 > place", "mkdir place; echo 2 > place/in", "echo 3 > other"])

    ((pair, kinds),) = [({one.one, one.other}, {each.kind.value for each in one.conflicts}) for one in found]
    assert {name.rpartition("-")[0] for name in pair} == {"x"}
    assert kinds == {"directory/file"}
    assert found[0].files > 0


async def test_no_more_are_told_than_anybody_would_read(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlaps, "MOST_TOLD", 2)

    found = await seen_by(repo, [f"echo {number} > same" for number in range(4)])

    assert len(found) == 2


async def test_trouble_with_looking_is_no_trouble_of_the_run(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlaps, "BATCH_SECONDS", 0.0)

    assert await seen_by(repo, ["echo 1 > same", "echo 2 > same"]) == []


async def test_an_error_of_the_run_passes_as_it_is_and_at_once(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlaps, "REST_SECONDS", 3600.0)

    with pytest.raises(ZeroDivisionError):
        async with AgentCoordinator(repo, 5, sandbox="none", agent=script("echo 1 > same")) as task_run:
            await task_run.run_agents([{"prompt": "x"}, {"prompt": "y"}])
            raise ZeroDivisionError
