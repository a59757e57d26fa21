"""A run is killed at its crash points, one after the other, and resumed: it ends as if nothing had happened."""

from collections import Counter
from pathlib import Path

import pytest

from tests.faults.conftest import Undisturb, Undisturbed
from tests.faults.invariants import Untouched, find_violations
from tests.faults.points import Kill
from tests.faults.scene import FOUR_TASKS, RUNTIME, THREE_TASKS, TWELVE_TASKS, VARIANTS, Scene, make_scene

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
    expected = undisturbed(FOUR_TASKS, RUNTIME)
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
    expected = undisturbed(FOUR_TASKS, RUNTIME)
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
    expected = undisturbed(TWELVE_TASKS, RUNTIME)
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


@pytest.mark.kills
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("half", range(2))
@pytest.mark.parametrize("variant", VARIANTS)
def test_points_of_other_workspaces(tmp_path: Path, undisturbed: Undisturb, variant: str, half: int) -> None:
    """What only another sandbox or workspace does is killed at once each; every third of these dies once more."""
    expected = undisturbed(THREE_TASKS, VARIANTS[variant])
    usual = set(undisturbed(TWELVE_TASKS, RUNTIME).points)
    own = [point for point in expected.points if point not in usual or point in FEW]
    for number, (name, times) in list(enumerate(Counter(own).items()))[half::2]:
        scene = make_scene(tmp_path / f"scene-{number}", THREE_TASKS, runtime=VARIANTS[variant])
        before = Untouched.of(scene.repo)
        kill = Kill(name, (times + 1) // 2)
        scene.start(*scene.words, kill=kill)
        if number % 3 == 0:
            scene.go_on(Kill(None, 11 * number + 1))
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
    """An undo or clean that was killed prints the same when repeated, and has the same outcome."""
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
