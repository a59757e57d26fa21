"""The key `runtime.checkpoints`: what it means, and every mistake at its position."""

import pytest

from shoal.model.plan import CHECKPOINT_SECONDS
from shoal.pipeline.load import parse
from shoal.pipeline.plan import plan
from shoal.pipeline.problems import BadDocument

FILE = "runtime: {%s}\nagents: {w: {adapter: command, command: [a]}}\nsteps: [{name: s, agent: w, prompt: x}]\n"


def interval(runtime: str) -> float | None:
    return plan(parse(FILE % runtime, "p"), environ={}).checkpoint_seconds


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("", CHECKPOINT_SECONDS),
        ("checkpoints: true", CHECKPOINT_SECONDS),
        ("checkpoints: null", CHECKPOINT_SECONDS),
        ("checkpoints: {minutes: 2}", 120),
        ("checkpoints: {minutes: 0.5}", 30),
        ("checkpoints: 90s", 90),
        ("checkpoints: 0.2", 0.2),
        ("checkpoints: false", None),
    ],
)
def test_the_interval_is_written_in_any_way(written: str, seconds: float | None) -> None:
    assert interval(written) == seconds


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("soon", "'soon' is not a duration"),
        ("-3", "-3 is not a duration"),
        ("{minutes: 0}", "`minutes` must be more than 0"),
        ("{hours: 1}", "unknown key `hours`; known: minutes"),
        ("[1]", "`checkpoints` must be a mapping, not a list"),
    ],
)
def test_what_cannot_be_meant_is_refused(written: str, why: str) -> None:
    with pytest.raises(BadDocument) as refused:
        interval(f"checkpoints: {written}")

    assert why in str(refused.value)
