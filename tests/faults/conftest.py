"""Undisturbed runs, to which the tests of this folder compare killed ones."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.faults.invariants import Untouched, find_violations
from tests.faults.scene import Outcome, make_scene


@dataclass(frozen=True)
class Undisturbed:
    """A run that nobody killed: its outcome, how often each agent started, and the points that it passed."""

    outcome: Outcome
    starts: Counter[str]
    points: list[str]


Undisturb = Callable[[str, str], Undisturbed]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturb:
    """Run a pipeline to its end, once for all tests."""
    known: dict[tuple[str, str], Undisturbed] = {}

    def run(steps: str, runtime: str) -> Undisturbed:
        if (steps, runtime) not in known:
            scene = make_scene(tmp_path_factory.mktemp("undisturbed") / "scene", steps, runtime=runtime)
            before = Untouched.of(scene.repo)
            code = scene.start(*scene.words)
            assert code == 0, scene.said()
            assert find_violations(scene, before) == []
            known[steps, runtime] = Undisturbed(scene.outcome(code), scene.starts(), scene.passed())
        return known[steps, runtime]

    return run
