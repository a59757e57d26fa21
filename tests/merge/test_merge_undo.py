"""Work that was merged or delivered can be taken out again."""

from pathlib import Path

import pytest

from shoal.errors import BadInput
from shoal.model.merge import DeliveryStatus
from tests.conftest import git
from tests.merge.delivering import BRANCH, at, moved_on, status_of
from tests.merge.merging import merged, report, run_of, side, statuses, tree, undone, worker


@pytest.mark.parametrize("strategy", ["auto", "squash", "rebase", "octopus"])
async def test_a_session_is_taken_out_by_building_without_it(repo: Path, strategy: str) -> None:
    run = run_of(repo, {"a": "0\n"}, {"b": "1\n"}, {"c": "2\n"})
    await merged(repo, run, strategy=strategy)

    done = await undone(repo, run, "s1")
    again = await merged(repo, run, strategy=strategy)
    named = await merged(repo, run, "s1", strategy=strategy)

    assert statuses(done) == {"s0": "merged", "s2": "merged"}
    assert statuses(again) == {"s0": "merged", "s2": "merged"}
    assert again.left_out == ("s1",)
    assert statuses(named) == {"s0": "merged", "s2": "merged", "s1": "merged"}
    assert git(repo, "ls-tree", "--name-only", BRANCH).split() == ["README.md", "a", "b", "c", "d0"]


@pytest.mark.parametrize(
    "strategy", ["auto", "squash", *(pytest.param(one, marks=pytest.mark.deep) for one in ("rebase", "octopus"))]
)
async def test_what_was_delivered_is_taken_out_by_a_revert(repo: Path, strategy: str) -> None:
    run = run_of(repo, {"a": "0\n"}, {"b": "1\n"})
    await merged(repo, run, into="main", strategy=strategy)
    theirs = moved_on(repo)

    done = await undone(repo, run, "s0")
    again = await merged(repo, run, into="main", strategy=strategy)

    assert status_of(done) is DeliveryStatus.DELIVERED
    assert git(repo, "merge-base", theirs, "main") == theirs
    assert git(repo, "ls-tree", "--name-only", "main").split() == ["README.md", "b", "d0", "theirs"]
    assert not (repo / "a").exists()
    assert git(repo, "status", "--porcelain") == ""
    assert status_of(again) is DeliveryStatus.UNCHANGED
    assert again.left_out == ("s0",)
    named = await merged(repo, run, "s0", into="main", strategy=strategy)
    source = str(run.steps[0].worker_results[0].commit)
    is_in_history = git(repo, "merge-base", source, theirs) == source  # git takes that for merged
    assert statuses(named)["s0"] == ("held" if is_in_history else "merged")


async def test_all_of_a_run_is_taken_out(repo: Path) -> None:
    run = run_of(repo, {"a": "0\n"}, {"b": "1\n"})
    before = tree(repo, "main")
    await merged(repo, run)

    await undone(repo, run)
    gone = git(repo, "branch", "--list", "shoal/*")
    await merged(repo, run, "s0", "s1", into="main")
    await undone(repo, run)

    assert gone == ""
    assert tree(repo, "main") == before
    assert git(repo, "branch", "--list", "agent/*").count("agent/") == 2


async def test_what_others_stand_on_or_build_over_is_not_taken_out_in_silence(repo: Path) -> None:
    one = side(repo, {"a": "1\n"})
    run = report(repo, [worker(0, one), worker(1, side(repo, {"b": "2\n"}, one))])
    with pytest.raises(BadInput, match="nothing of"):
        await undone(repo, run)
    await merged(repo, run, into="main")

    with pytest.raises(BadInput, match="s1 builds on s0"):
        await undone(repo, run, "s0")
    (repo / "b").write_text("changed since\n")
    git(repo, "commit", "-qam", "over it")
    over = at(repo)
    done = await undone(repo, run, "s1")

    assert statuses(done) == {"s1": "conflicts"}
    assert at(repo) == over
