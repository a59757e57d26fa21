"""A run is killed at its crash points, one after the other, and resumed: it ends as if nothing had happened."""

import ast
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

from shoal.model.events import Event
from tests.faults.invariants import Untouched, find_violations
from tests.faults.points import GIT_READS, Kill
from tests.faults.scene import FOUR_TASKS, TWELVE_TASKS, Outcome, Scene, make_scene
from tests.test_architecture import EVERY_FILE, place, tree

SHARDS = 24
RECOVERY_KILLS = 5
FEW = (
    "after RunStarted",
    "before StepStarted",
    "after SessionStarted",
    "start sh",
    "rename .shoal/boxes/…/pack-*.idx",
    "before git update-ref refs/heads/agent",
    "before SessionEnded",
    "rename request",
    "before GateAnswered",
    "after git update-ref refs/heads/shoal",
    "rename .git/index-shoal-*",
    "after git update-ref refs/heads/main",
    "before RunEnded",
)
"""One in four of these is killed at by every test run, all by `make test-deep`, and every point by `make test-kills`."""

NOT_PASSED = {
    "RunResumed": "recorded by the commands that resume; kills during recovery pass it",
    "SessionDiscarded": "recorded together with RunResumed, in one transaction",
    "AgentActed": "reported by real clients",
    "AgentMessaged": "recorded for `shoal send`",
    "ClientHeard": "reported by real clients",
    "ResourcesSampled": "a look at an agent; a note that the next kill may lose",
    "CheckpointKept": "recorded of agents that work for minutes",
    "Output": "printed by agents; a note that the next kill may lose together with its agent",
    "Waiting": "recorded when the host is short of something",
    "PermissionDecided": "recorded for agents that ask for permissions",
    "RequestIgnored": "recorded for files that are no requests",
    "RequestTaken": "recorded for requests to stop",
    "OverlapSeen": "recorded when agents change the same files",
}
"""Kinds of events that the scenario does not record, and why no kill is placed around them."""
GIT_NOT_PASSED = {
    "bundle": "for an export, which writes beside its target and renames",
    "worktree": "for the strategy `worktree`",
    "commit-tree": "for merges with commits of their own, and snapshots",
    "hash-object": "for snapshots of plain folders, and resolved conflicts",
    "init": "for snapshots of plain folders",
    "add": "for snapshots of plain folders",
    "commit": "for snapshots of plain folders",
    "mktree": "for resolved conflicts",
    "write-tree": "for resolved conflicts and undo",
    "unpack-objects": "for small packs",
    "index-pack": "for packs that are gathered",
    "fetch": "for partial clones",
}


@dataclass(frozen=True)
class Undisturbed:
    """A run that nobody killed: what it came to, how often each agent started, and the points that it passed."""

    outcome: Outcome
    starts: Counter[str]
    points: list[str]


Undisturb = Callable[[str], Undisturbed]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturb:
    """Run a pipeline to its end, once for the whole module."""
    known: dict[str, Undisturbed] = {}

    def run(steps: str) -> Undisturbed:
        if steps not in known:
            scene = make_scene(tmp_path_factory.mktemp("undisturbed") / "scene", steps)
            before = Untouched.of(scene.repo)
            code = scene.start(*scene.words)
            assert code == 0, scene.said()
            assert find_violations(scene, before) == []
            known[steps] = Undisturbed(scene.outcome(code), scene.starts(), scene.passed())
        return known[steps]

    return run


def assert_as_undisturbed(scene: Scene, before: Untouched, code: int, expected: Undisturbed) -> None:
    """The run ended as it would have ended without any kill, and no more agents started again than ran at the kills."""
    assert find_violations(scene, before) == [], scene.said()
    assert scene.outcome(code) == expected.outcome
    assert (scene.starts() - expected.starts).total() <= scene.running_at_kills


@pytest.mark.parametrize(
    "point", [*FEW[::4], *(pytest.param(point, marks=pytest.mark.deep) for point in FEW if point not in FEW[::4])]
)
def test_a_run_killed_at_a_point_ends_as_if_nothing_had_happened(
    tmp_path: Path, undisturbed: Undisturb, point: str
) -> None:
    expected = undisturbed(FOUR_TASKS)
    scene = make_scene(tmp_path / "scene", FOUR_TASKS)
    before = Untouched.of(scene.repo)

    killed = scene.start(*scene.words, kill=Kill(point, 1))
    code = scene.settle()

    assert killed == -9, f"the point {point!r} is not passed any more"
    assert_as_undisturbed(scene, before, code, expected)


@pytest.mark.deep
def test_a_run_killed_five_times_while_it_is_resumed_ends_as_if_nothing_had_happened(
    tmp_path: Path, undisturbed: Undisturb
) -> None:
    expected = undisturbed(FOUR_TASKS)
    scene = make_scene(tmp_path / "scene", FOUR_TASKS)
    before = Untouched.of(scene.repo)
    scene.start(*scene.words, kill=Kill("after SessionStarted", 2))

    for number in range(RECOVERY_KILLS):
        scene.go_on(Kill(None, 40 * number + 20))
    code = scene.settle()

    assert_as_undisturbed(scene, before, code, expected)


@pytest.mark.kills
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_point_of_a_run(tmp_path: Path, undisturbed: Undisturb, shard: int) -> None:
    """Each point is taken at its first, at its last and at a middle passing; a third of them then die five times more."""
    expected = undisturbed(TWELVE_TASKS)
    for number, kill in list(enumerate(list_kills(expected.points)))[shard::SHARDS]:
        scene = make_scene(tmp_path / f"scene-{number}", TWELVE_TASKS)
        before = Untouched.of(scene.repo)
        scene.start(*scene.words, kill=kill)
        for again in range(RECOVERY_KILLS if number % 3 == 0 else 0):
            scene.go_on(Kill(None, 37 * again + number % 37 + 1))
        code = scene.settle()
        try:
            assert_as_undisturbed(scene, before, code, expected)
        except AssertionError as error:
            raise AssertionError(f"killed at {kill}: {error}") from error


AFTERWARDS = (("merge", "--undo", "--yes"), ("clean",))


@pytest.mark.kills
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("words", AFTERWARDS, ids=lambda words: str(words[0]))
def test_every_point_of_undo_and_clean(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Whoever is killed while undoing or cleaning says the same again, and comes to the same."""
    first = make_scene(tmp_path / "first", FOUR_TASKS)
    assert first.start(*first.words) == 0
    assert first.start(*words) == 0, first.said()
    expected = first.outcome(0)
    points = first.passed()
    for number, kill in enumerate(list_kills(points)):
        scene = make_scene(tmp_path / f"scene-{number}", FOUR_TASKS)
        before = Untouched.of(scene.repo)
        assert scene.start(*scene.words) == 0
        scene.start(*words, kill=kill)
        assert scene.start(*words) == 0, (kill, scene.said())
        assert scene.start("clean") == 0, scene.said()

        assert find_violations(scene, before) == [], kill
        assert scene.outcome(0) == expected, kill


def list_kills(points: list[str]) -> list[Kill]:
    """Place a kill at the first, the middle and the last passing of each point."""
    passings = Counter(points)
    return [Kill(name, number) for name, times in passings.items() for number in sorted({1, (times + 1) // 2, times})]


def test_every_kind_of_event_is_recorded_by_the_scenario_or_listed_with_a_reason(undisturbed: Undisturb) -> None:
    passed = {point.removeprefix("before ") for point in undisturbed(TWELVE_TASKS).points}
    kinds = {kind.__name__ for kind in get_args(Event)}

    assert kinds - passed - set(NOT_PASSED) == set(), "kinds of events without a crash point"
    assert set(NOT_PASSED) - kinds == set(), "kinds of events that are gone"


def test_every_git_command_that_writes_is_run_by_the_scenario_or_listed_with_a_reason(undisturbed: Undisturb) -> None:
    passed = {point.split(" ")[2] for point in undisturbed(TWELVE_TASKS).points if point.startswith("before git ")}

    assert git_commands() - GIT_READS - passed - set(GIT_NOT_PASSED) == set(), "commands of git without a crash point"


def git_commands() -> set[str]:
    """Name the commands of git that the source gives to its door."""
    calls = (node for path in EVERY_FILE if place(path) != "git/run.py" for node in ast.walk(tree(path)))
    found = set()
    for call in calls:
        if isinstance(call, ast.Call) and getattr(call.func, "id", getattr(call.func, "attr", "")) in (
            "git",
            "git_text",
        ):
            words = [word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
            found |= set([word for word in words if not word.startswith("-")][:1])
    return found
