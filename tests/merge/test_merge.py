"""Sessions are merged outside the checkout, by every strategy; conflicts are reported and stop nothing."""

from pathlib import Path

import pytest

from shoal.errors import BadInput
from shoal.merge.merge import preview
from shoal.merge.request import Verify
from shoal.model.merge import ConflictKind
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from tests.conftest import git, make_repo
from tests.merge.merging import RUN, canary, merged, open_merge_context, report, run_of, side, statuses, tree, worker

BRANCH = f"shoal/{RUN}"
STRATEGIES = ("review", "auto", "squash", "rebase", "octopus")


async def test_a_conflict_stops_nobody_and_is_told_with_its_partner(repo: Path) -> None:
    run = run_of(repo, {"same": "0\n"}, {"a": "1\n"}, {"same": "2\n"}, {"b": "3\n"})
    before = {name: (repo / ".git" / name).read_bytes() for name in ("HEAD", "index", "config")}

    done = await merged(repo, run)

    assert [one.session for one in done.results] == ["s1", "s3", "s0", "s2"]  # fewest conflicts first
    assert statuses(done) == {"s0": "merged", "s1": "merged", "s2": "conflicts", "s3": "merged"}
    (conflict,) = done["s2"].conflicts
    assert (conflict.kind, conflict.paths, conflict.partners) == (ConflictKind.CONTENT, ("same",), ("s0",))
    assert done["s2"]["status"] == "conflicts"
    assert git(repo, "show", f"{BRANCH}:same") == "0"
    assert git(repo, "rev-list", "--count", "--no-merges", f"main..{BRANCH}") == "3"
    assert {name: (repo / ".git" / name).read_bytes() for name in before} == before
    assert git(repo, "status", "--porcelain") == ""
    assert git(repo, "fsck", "--strict", "--no-dangling") == ""


async def test_named_sessions_are_merged_in_their_order_and_the_rest_later(repo: Path) -> None:
    run = run_of(repo, {"same": "0\n"}, {"a": "1\n"}, {"same": "2\n"})

    first = await merged(repo, run, "s2", "s1")
    then = await merged(repo, run)

    assert [one.session for one in first.results] == ["s2", "s1"]
    assert statuses(then) == {"s2": "merged", "s1": "merged", "s0": "conflicts"}
    assert then.commit == first.commit


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_every_strategy_gives_the_tree_that_git_gives(repo: Path, strategy: str) -> None:
    run = run_of(repo, {"a": "0\n"}, {"d0/f0.txt": "1\n"}, {"d0/f1.txt": None, "b": "2\n"})
    git(repo, "switch", "-qc", "theirs")
    for one in run.steps[0].worker_results:
        git(repo, "merge", "-q", "--no-ff", "--no-edit", str(one.commit))
    git(repo, "switch", "-q", "main")

    done = await merged(repo, run, strategy=strategy)

    assert set(statuses(done).values()) == {"merged"}
    assert tree(repo, BRANCH) == tree(repo, "theirs")
    parents = {"squash": "1 1 1", "rebase": "1 1 1", "octopus": "4"}.get(strategy, "2 2 2")
    listed = git(repo, "log", "--first-parent", "--format=%P", f"main..{BRANCH}").splitlines()
    assert [len(line.split()) for line in listed] == [int(number) for number in parents.split()]
    assert all(one.commit and git(repo, "cat-file", "-t", one.commit) == "commit" for one in done.results)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("order", [("s0", "s1", "s2"), ("s2", "s0", "s1")])
async def test_sessions_that_stand_on_each_other_never_conflict(repo: Path, strategy: str, order: tuple[str]) -> None:
    one = side(repo, {"a": "1\n", "b": "1\n"})
    two = side(repo, {"a": "2\n"}, one)
    three = side(repo, {"a": "3\n", "c": "3\n"}, two)
    run = report(repo, [worker(0, one), worker(1, two), worker(2, three)])

    done = await merged(repo, run, *order, strategy=strategy)

    assert set(statuses(done).values()) == {"merged"}
    assert tree(repo, BRANCH) == tree(repo, three)


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_done_again_it_changes_nothing_and_goes_on_with_what_is_new(repo: Path, strategy: str) -> None:
    first, second, third = (side(repo, files) for files in ({"a": "0\n"}, {"a": "1\n", "b": "1\n"}, {"c": "2\n"}))
    early = report(repo, [worker(0, first), worker(1, second)])
    await merged(repo, early, strategy=strategy)
    at, told = git(repo, "rev-parse", BRANCH), len(list(read_events(StatePaths.of(repo))))

    again = await merged(repo, early, strategy=strategy)
    unchanged = git(repo, "rev-parse", BRANCH), len(list(read_events(StatePaths.of(repo))))
    later = await merged(repo, report(repo, [worker(0, first), worker(1, second), worker(2, third)]), strategy=strategy)

    assert unchanged == (at, told)
    assert statuses(again) == {"s0": "merged", "s1": "conflicts"}
    assert statuses(later) == {"s0": "merged", "s1": "conflicts", "s2": "merged"}
    assert git(repo, "merge-base", at, BRANCH) == at


async def test_what_ended_badly_or_is_an_alternative_is_left_out_until_it_is_named(repo: Path) -> None:
    sides = [side(repo, {f"f{number}": "x\n"}) for number in range(3)]
    bad = report(
        repo, [worker(0, sides[0]), worker(1, sides[1], status="failed"), worker(2, None, status="no_changes")]
    )

    done = await merged(repo, bad)
    chosen = await merged(repo, report(repo, [worker(n, one) for n, one in enumerate(sides)], selected=0))
    named = await merged(repo, bad, "s1")

    assert statuses(done) == {"s0": "merged", "s2": "no_changes"}
    assert done.left_out == ("s1",)
    assert statuses(chosen) == {"s0": "merged"}
    assert statuses(named) == {"s0": "merged", "s1": "merged"}


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_what_runs_on_the_users_machine_is_held_until_it_is_allowed(repo: Path, strategy: str) -> None:
    commit = side(repo, {".github/workflows/ci.yml": "on: push\n"})
    run = report(
        repo, [worker(0, commit, executable=[".github/workflows/ci.yml"]), worker(1, side(repo, {"a": "1\n"}))]
    )

    held = await merged(repo, run, strategy=strategy)
    allowed = await merged(repo, run, strategy=strategy, allow=True)

    assert statuses(held) == {"s1": "merged", "s0": "held"}
    assert held.needs_a_person
    assert ".github/workflows/ci.yml" in held["s0"].message
    assert statuses(allowed) == {"s1": "merged", "s0": "merged"}


async def test_names_that_differ_only_by_case_are_a_conflict(repo: Path) -> None:
    run = run_of(repo, {"Notes/one": "1\n"}, {"notes/two": "2\n"}, {"other": "3\n"}, {"OTHER": "4\n"}, {"b": "5\n"})

    done = await merged(repo, run)

    assert statuses(done) == {"s0": "merged", "s1": "conflicts", "s2": "merged", "s3": "conflicts", "s4": "merged"}
    assert done["s1"].conflicts[0].kind is ConflictKind.CASE
    assert done["s3"].conflicts[0].paths == ("OTHER", "other")


async def test_a_combination_that_fails_is_found_and_the_second_of_it_put_aside(repo: Path) -> None:
    run = run_of(repo, {"zero": "\n"}, {"one": "\n"}, {"two": "\n"}, {"three": "\n"})
    asked: list[str] = []

    async def verify(commit: str) -> str | None:
        asked.append(commit)
        names = git(repo, "ls-tree", "--name-only", commit).split()
        return "one and three do not go together" if {"one", "three"} <= set(names) else None

    checked: Verify = verify
    done = await merged(repo, run, verify=checked)

    assert statuses(done) == {"s0": "merged", "s1": "merged", "s2": "merged", "s3": "held"}
    assert "do not go together" in done["s3"].message
    assert len(asked) <= 5


async def test_a_preview_names_the_pairs_and_changes_nothing(repo: Path) -> None:
    lines = "".join(f"line {number}\n" for number in range(20))
    git(repo, "rm", "-q", "--cached", "README.md")
    (repo / "text").write_text(lines)
    git(repo, "add", "text")
    git(repo, "commit", "-qm", "text")
    run = run_of(
        repo,
        {"text": f"top\n{lines}"},
        {"text": f"{lines}end\n"},
        {"text": f"other\n{lines}"},
        {"place": ""},
        {"place/in": ""},
    )
    before = git(repo, "for-each-ref"), git(repo, "count-objects")

    async with open_merge_context(repo, run) as context:
        seen = await preview(context)

    assert seen.overlaps == (("s0", "s1"), ("s1", "s2"))
    assert {(one.one, one.other) for one in seen.clashes} == {("s0", "s2"), ("s3", "s4")}
    assert seen.partners("s2") == ("s0",)
    assert (git(repo, "for-each-ref"), git(repo, "count-objects")) == before


async def test_a_persons_own_work_on_the_integration_branch_is_kept(repo: Path, tmp_path: Path) -> None:
    run = run_of(repo, {"same": "0\n"}, {"same": "1\n"})
    await merged(repo, run)
    git(repo, "worktree", "add", "-q", str(tmp_path / "mine"), BRANCH)
    git(tmp_path / "mine", "merge", "-q", "-s", "ours", "--no-edit", str(run.steps[0].worker_results[1].commit))
    mine = git(repo, "rev-parse", BRANCH)
    late = report(repo, [*run.steps[0].worker_results, worker(2, side(repo, {"late": "2\n"}))])

    by_hand = await merged(repo, run)
    with pytest.raises(BadInput, match="is checked out in"):
        await merged(repo, late)
    git(tmp_path / "mine", "switch", "-q", "--detach")
    done = await merged(repo, late)

    assert statuses(by_hand) == {"s0": "merged", "s1": "merged"}
    assert statuses(done) == {"s0": "merged", "s1": "merged", "s2": "merged"}
    assert git(repo, "merge-base", mine, BRANCH) == mine


async def test_a_branch_that_was_set_elsewhere_is_not_taken_for_ours(repo: Path) -> None:
    run = run_of(repo, {"a": "0\n"})
    await merged(repo, run)
    git(repo, "branch", "-f", BRANCH, side(repo, {"z": "z\n"}))

    with pytest.raises(BadInput, match="is not where Shoal left it"):
        await merged(repo, run)
    git(repo, "branch", "-D", BRANCH)

    assert statuses(await merged(repo, run)) == {"s0": "merged"}


async def test_a_repository_of_longer_names_is_merged_too(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "sha256", form="--object-format=sha256")

    done = await merged(repo, run_of(repo, {"a": "0\n"}, {"b": "1\n"}, {"a": "2\n"}), strategy="squash")

    assert statuses(done) == {"s1": "merged", "s0": "merged", "s2": "conflicts"}
    assert git(repo, "fsck", "--strict", "--no-dangling") == ""


@pytest.mark.deep
async def test_nothing_of_anybodys_runs(repo: Path, tmp_path: Path) -> None:
    attributes = {".gitattributes": "* filter=evil merge=evil diff=evil\n"}
    run = run_of(repo, {**attributes, "d0/f0.txt": "1\n"}, {"d0/f0.txt": "line 0\n" * 19 + "2\n", **attributes})
    is_sprung = canary(repo, tmp_path)
    (repo / ".git/info/attributes").write_text("* filter=evil merge=evil\n")

    for strategy in STRATEGIES:
        await merged(repo, run, strategy=strategy)
    async with open_merge_context(repo, run) as context:
        await preview(context)

    assert not is_sprung()
