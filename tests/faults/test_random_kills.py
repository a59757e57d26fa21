"""Runs of every shape die at random and are resumed: they end as runs that nobody killed, and repeat no finished work."""

import random
from pathlib import Path

import pytest

from tests.faults.invariants import Untouched, find_violations
from tests.faults.points import Kill
from tests.faults.scene import Scene, make_scene
from tests.faults.shapes import STEPS, shape_scene

KILLS_EACH = 5
SEEDS = 7
"""With six shapes and five kills each these are 210 kills."""


def make(folder: Path, shape: str) -> Scene:
    return shape_scene(make_scene(folder, STEPS[shape], merge=""), shape)


def kill_at_random(folder: Path, shape: str, seed: int, kills: int) -> None:
    expected = make(folder / "undisturbed", shape)
    code = expected.start(*expected.words)
    assert code == 0, expected.said()
    most = len(expected.passed())
    scene = make(folder / "killed", shape)
    before = Untouched.of(scene.repo)
    chance = random.Random(seed)

    for _ in range(kills):
        scene.go_on(Kill(None, chance.randrange(1, most)))
    again = scene.settle()

    assert find_violations(scene, before) == [], scene.said()
    assert scene.outcome(again) == expected.outcome(code)
    assert (scene.starts() - expected.starts()).total() <= scene.running_at_kills


@pytest.mark.deep
@pytest.mark.parametrize("shape", STEPS)
def test_a_run_that_dies_at_random_ends_as_if_it_had_not(tmp_path: Path, shape: str) -> None:
    kill_at_random(tmp_path, shape, seed=1, kills=2)


@pytest.mark.kills
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("shape", STEPS)
def test_runs_of_every_shape_that_die_at_random(tmp_path: Path, shape: str, seed: int) -> None:
    kill_at_random(tmp_path, shape, seed, KILLS_EACH)
