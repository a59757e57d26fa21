"""Conflicts resolved by rule with every strategy, verified within a width, and kept when branches move."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal import AgentCoordinator
from shoal.errors import BadInput, UnknownName
from shoal.merge.merge import merge
from shoal.merge.request import ConflictOptions, MergeRequest
from shoal.merge.undo import undo
from shoal.model.conflict_rule import ConflictRule
from shoal.model.merge import MergeIntended, MergeReport, Strategy
from shoal.model.results import RunReport
from tests.conftest import git, make_repo
from tests.merge.merging import merged, open_merge_context, report, run_of, side, statuses, tree, worker

FORMS = ["auto", "squash", "rebase", "octopus"]
BRANCH = "shoal/t-20260101-abcd"


async def ruled(repo: Path, run: RunReport, strategy: str, rule: str, **how: object) -> MergeReport:
    request = MergeRequest(strategy=Strategy(strategy), resolving=ConflictOptions(rule=ConflictRule(rule)))
    async with open_merge_context(repo, run) as context:
        return await merge(context, replace(request, **how))  # type: ignore[arg-type]


def conflicting(repo: Path) -> RunReport:
    """Three sessions: the first two change the same file, the third another one."""
    return run_of(repo, {"a": "one\n", "x": "1\n"}, {"a": "two\n", "y": "2\n"}, {"z": "3\n"})


@pytest.mark.parametrize("strategy", FORMS)
async def test_a_side_wins_in_every_form_and_wins_again_when_the_branch_moved(repo: Path, strategy: str) -> None:
    run = conflicting(repo)

    done = await ruled(repo, run, strategy, "theirs")

    assert statuses(done) == {"s0": "merged", "s1": "merged", "s2": "merged"}
    assert (done["s1"].resolved_by, done["s1"].conflicts, done.needs_a_person) == ("theirs", (), False)
    assert git(repo, "show", f"{BRANCH}:a") == "two"
    assert git(repo, "ls-tree", "--name-only", BRANCH, "x", "y", "z").split() == ["x", "y", "z"]
    again = await merged(repo, run, strategy=strategy)
    assert (again.commit, again["s1"].resolved_by) == (done.commit, "theirs")

    git(repo, "commit", "-q", "--allow-empty", "-m", "mine")
    moved = await merged(repo, run, strategy=strategy, into="main")
    assert (moved["s1"].resolved_by, moved.needs_a_person) == ("theirs", False)
    assert tree(repo, "main") == git(repo, "rev-parse", f"{done.commit}^{{tree}}")


async def test_what_was_resolved_is_never_off_the_branch_while_it_is_built_anew(repo: Path) -> None:
    run = conflicting(repo)
    await ruled(repo, run, "auto", "ours")
    git(repo, "commit", "-q", "--allow-empty", "-m", "mine")
    known: list[set[str]] = []

    async with open_merge_context(repo, run) as context:
        context.ledger.subscribe(
            lambda one: (
                known.append({it.session for it in one.event.results}) if isinstance(one.event, MergeIntended) else None
            )
        )
        await merge(context, MergeRequest(strategy=Strategy.AUTO, into="main"))

    assert known == [{"s0", "s1", "s2"}]


async def test_another_session_is_taken_out_and_what_was_resolved_stays(repo: Path) -> None:
    run = conflicting(repo)
    await ruled(repo, run, "auto", "ours")

    async with open_merge_context(repo, run) as context:
        done = await undo(context, ["s2"])

    assert statuses(done) == {"s0": "merged", "s1": "merged"}
    assert git(repo, "show", f"{BRANCH}:a") == "one"
    assert git(repo, "ls-tree", "--name-only", BRANCH, "x", "y", "z").split() == ["x", "y"]


async def test_a_rule_that_cannot_decide_says_so_and_the_rest_lands(repo: Path) -> None:
    run = run_of(repo, {"README.md": None}, {"README.md": "changed\n"}, {"z": "3\n"})

    done = await ruled(repo, run, "auto", "ours")

    assert sorted(statuses(done).values()) == ["conflicts", "merged", "merged"]
    (left,) = [one for one in done.results if one.status.needs_a_person]
    assert "`ours` did not resolve it: `ours` does not apply to files that a side deleted" in left.message


@pytest.mark.parametrize("strategy", FORMS)
async def test_who_stands_on_what_was_resolved_comes_after_it(repo: Path, strategy: str) -> None:
    base = git(repo, "rev-parse", "main")
    first, second = side(repo, {"a": "one\n"}, base), side(repo, {"a": "two\n"}, base)
    run = report(repo, [worker(0, first), worker(1, second), worker(2, side(repo, {"n": "n\n"}, second))])

    done = await ruled(repo, run, strategy, "ours", sessions=("s0", "s2", "s1"))

    assert statuses(done) == {"s0": "merged", "s1": "merged", "s2": "merged"}
    assert (done["s1"].resolved_by, done["s2"].resolved_by) == ("ours", None)
    assert (git(repo, "show", f"{BRANCH}:a"), git(repo, "show", f"{BRANCH}:n")) == ("one", "n")


async def test_each_of_many_conflicts_is_settled_on_what_the_one_before_made(repo: Path) -> None:
    run = run_of(repo, *({"a": f"{number}\n", f"own{number}": "x\n"} for number in range(5)))

    done = await ruled(repo, run, "auto", "theirs")

    assert set(statuses(done).values()) == {"merged"}
    assert [one.resolved_by for one in done.results] == [None, *["theirs"] * 4]
    assert git(repo, "show", f"{BRANCH}:a") == "4"
    assert len(git(repo, "ls-tree", "--name-only", BRANCH, *(f"own{one}" for one in range(5))).split()) == 5


async def test_commits_that_conflict_one_by_one_are_merged_as_one_where_the_whole_fits(repo: Path) -> None:
    base = git(repo, "rev-parse", "main")
    first = side(repo, {"README.md": "one\n"}, base)
    middle = side(repo, {"README.md": "two\n"}, base)
    back = side(repo, {"README.md": git(repo, "show", "main:README.md") + "\n", "n": "n\n"}, middle)
    run = report(repo, [worker(0, first), worker(1, back)])

    assert statuses(await merged(repo, run, strategy="rebase"))["s1"] == "conflicts"
    done = await ruled(repo, run, "rebase", "theirs")

    assert statuses(done) == {"s0": "merged", "s1": "merged"}
    assert git(repo, "show", f"{BRANCH}:README.md") == "one"
    assert git(repo, "rev-list", "--count", f"main..{BRANCH}") == "2"


async def test_a_tree_is_verified_once_also_when_the_branch_moves_meanwhile(repo: Path) -> None:
    run = conflicting(repo)
    seen: list[str] = []

    async def verify(commit: str) -> str | None:
        seen.append(tree(repo, commit))
        if len(seen) == 1:
            git(repo, "commit", "-q", "--allow-empty", "-m", "mine")
        return None

    done = await ruled(repo, run, "auto", "ours", verify=verify, into="main")

    assert done.delivery is not None
    assert done.delivery.status.value == "delivered"
    assert statuses(done)["s1"] == "merged"
    assert len(seen) == len(set(seen)) == 2, "the clean ones together, and then with what was resolved"


async def test_a_base_that_fails_itself_is_told_and_who_mends_it_lands(repo: Path) -> None:
    run = run_of(repo, {"a": "1\n"}, {"fix": "1\n"}, {"b": "2\n"})

    async def verify(commit: str) -> str | None:
        is_good = git(repo, "ls-tree", "--name-only", commit, "a", "fix") == "fix"
        return None if is_good else "`check` did not pass: 1\nlog"

    done = await ruled(repo, run, "auto", "report", verify=verify)

    assert done.base_fault == "`check` did not pass: 1\nlog"
    assert statuses(done) == {"s1": "merged", "s2": "merged", "s0": "held"}
    assert done["s0"].message.startswith("verification already fails on the base: `check` did not pass: 1; with it:")


def bad_run(repo: Path, count: int, bad: frozenset[int]) -> RunReport:
    return run_of(repo, *({f"{'bad' if one in bad else 'good'}{one}": f"{one}\n"} for one in range(count)))


async def verified(repo: Path, run: RunReport, strategy: str, width: int) -> tuple[dict[str, str], int, int]:
    """Merge, where whatever has a bad file is bad; gives the outcome, how many were looked at, and at once."""
    looked, now, most = 0, 0, 0

    async def verify(commit: str) -> str | None:
        nonlocal looked, now, most
        looked, now = looked + 1, now + 1
        most = max(most, now)
        try:
            await asyncio.sleep(0)
            return "bad" if "bad" in git(repo, "ls-tree", "--name-only", commit) else None
        finally:
            now -= 1

    done = await ruled(repo, run, strategy, "report", verify=verify, width=width)
    return statuses(done), looked, most


@pytest.mark.parametrize(("count", "bad"), [(16, {3}), (16, {0, 9}), (8, set())])
async def test_bad_ones_cost_about_the_logarithm_of_all(repo: Path, count: int, bad: set[int]) -> None:
    found, looked, _ = await verified(repo, bad_run(repo, count, frozenset(bad)), "auto", 1)

    assert {name for name, status in found.items() if status == "held"} == {f"s{one}" for one in bad}
    assert looked <= 2 + len(bad) * (math.ceil(math.log2(count)) + 1)


@pytest.mark.deep
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.frozensets(st.integers(0, 6), max_size=3), st.sampled_from(FORMS), st.integers(2, 4), st.integers(0, 10**9))
def test_looking_ahead_changes_no_outcome(
    tmp_path: Path, bad: frozenset[int], strategy: str, width: int, number: int
) -> None:
    repo = make_repo(tmp_path / f"{number}-{width}")
    run = bad_run(repo, 7, bad)

    found, _, most = asyncio.run(verified(repo, run, strategy, width))

    assert {name for name, status in found.items() if status == "held"} == {f"s{one}" for one in bad}
    assert most <= width
    names = set(git(repo, "ls-tree", "--name-only", BRANCH).split()) if len(bad) < 7 else set()
    assert not any(name.startswith("bad") for name in names)


def shell(script: str, prompt: str = "go") -> dict[str, object]:
    return {"prompt": prompt, "agent": {"adapter": "command", "command": ["sh", "-c", script]}}


FIXER = {"name": "fixer", "adapter": "command", "command": ["sh", "-c", "printf 'one\\ntwo\\n' > a"]}


@pytest.mark.deep
@pytest.mark.parametrize("strategy", FORMS)
async def test_what_an_agent_resolved_is_brought_in_again_when_the_branch_moved(repo: Path, strategy: str) -> None:
    async with AgentCoordinator(repo=repo, max_concurrent=1, sandbox="none") as coordinator:
        tasks = [shell("echo one > a; echo 1 > x"), shell("echo two > a; echo 2 > y"), shell("echo 3 > z")]
        results = await coordinator.run_agents(tasks)
        done = await coordinator.merge(results, strategy, on_conflict="agent", resolver=FIXER)
        (repo / "mine").write_text("mine\n")
        git(repo, "add", "mine")
        git(repo, "commit", "-qm", "mine")
        moved = await coordinator.merge(results, strategy, into="main")
        run = coordinator.report

    second = results[1].session
    assert (done[second].resolved_by, moved[second].resolved_by) == ("agent", "agent")
    assert moved[second].resolver == done[second].resolver
    assert (repo / "a").read_text() == "one\ntwo\n"
    assert {path.name for path in repo.iterdir()} >= {"a", "x", "y", "z", "mine"}
    (step,) = [one for one in run.steps if one.step.endswith("__resolve")]
    assert len(step.worker_results) == 1
    assert "<<<<<<<" not in git(repo, "log", "-p", "main")


async def test_a_program_has_a_task_done_again(repo: Path) -> None:
    async with AgentCoordinator(repo=repo, max_concurrent=1, sandbox="none") as coordinator:
        results = await coordinator.run_agents([shell("echo one >> a"), shell("echo two >> a")])
        done = await coordinator.merge(results, "auto", on_conflict="redo", verify="test -s a")
        later = await coordinator.merge(results, "auto", into="main")

    second = results[1].session
    assert (done[second].status.value, done[second].resolved_by) == ("merged", "redo")
    assert done[second].resolver == f"go__redo-{str(done[second].resolver)[-6:]}"
    assert later[second].resolved_by == "redo"
    assert (repo / "a").read_text() == "one\ntwo\n"


async def test_rules_that_are_none_are_refused(repo: Path) -> None:
    coordinator = AgentCoordinator(repo=repo)
    with pytest.raises(UnknownName, match="did you mean 'redo'"):
        await coordinator.merge(on_conflict="redoo")
    with pytest.raises(BadInput, match="needs a `resolver`"):
        await coordinator.merge(on_conflict="agent")
    with pytest.raises(BadInput, match="goes with `on_conflict` `agent` only"):
        await coordinator.merge(on_conflict="ours", resolver="claude")


async def test_a_run_that_is_over_is_verified_and_merged_on_its_own_branch(repo: Path) -> None:
    async with AgentCoordinator(repo=repo, max_concurrent=1, sandbox="none") as coordinator:
        results = await coordinator.run_agents([shell("echo one > a"), shell("echo two > a")])
        run = coordinator.report.run

    done = await coordinator.merge(results, "auto", verify="test -e a", on_conflict="agent", resolver=FIXER)

    assert (done.run, done.branch) == (run, f"shoal/{run}")
    assert [one.status.value for one in done.results] == ["merged", "merged"]
    assert git(repo, "show", f"shoal/{run}:a").split() == ["one", "two"]
    with pytest.raises(BadInput, match="name the results"):
        await coordinator.merge(verify="true")
