"""Looks at sessions slow down with their number and their cost, and never stop."""

import contextlib
import time

from shoal.sessions.pace import LONGEST_SECONDS, SHORTEST_SECONDS, Pace


def test_few_are_looked_at_often_and_many_seldom() -> None:
    pace = Pace()
    with contextlib.ExitStack() as watched:
        watched.enter_context(pace.watching())
        with pace.look():
            time.sleep(0.001)
        alone = pace.seconds
        for _ in range(1000):
            watched.enter_context(pace.watching())
        many = pace.seconds

    assert alone == SHORTEST_SECONDS
    assert SHORTEST_SECONDS < many <= LONGEST_SECONDS


def test_one_dear_look_does_not_blind_the_others() -> None:
    pace = Pace()
    with pace.watching(), pace.look():
        time.sleep(0.2)

    assert pace.seconds == SHORTEST_SECONDS
