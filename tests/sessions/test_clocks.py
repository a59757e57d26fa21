"""Polls of sessions slow down with their number and their cost, and never stop."""

import contextlib
import time
from typing import cast

from shoal.limits.kind import LimitGroup, ResourceUsage
from shoal.model.resources import ResourceSample
from shoal.sessions.clocks import LONGEST_SECONDS, SHORTEST_SECONDS, PollInterval
from shoal.sessions.resource_meter import ResourceMeter


def test_few_are_looked_at_often_and_many_seldom() -> None:
    pace = PollInterval()
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
    pace = PollInterval()
    with pace.watching(), pace.look():
        time.sleep(0.2)

    assert pace.seconds == SHORTEST_SECONDS


class SteadyGroup:
    """Has 100 MB, and one second of CPU in all."""

    def usage(self) -> ResourceUsage:
        return ResourceUsage(memory_bytes=100 * 2**20, memory_peak_bytes=120 * 2**20, cpu_seconds=1.0)


def test_samples_of_a_session_become_fewer_as_it_works_and_its_sums_stay_right() -> None:
    meter, samples = ResourceMeter(), list[ResourceSample]()
    began = time.monotonic()
    for day in range(2):
        with meter.hold(cast(LimitGroup, SteadyGroup())):
            for second in range(0, 24 * 3600, 2):
                meter.look(began + day * 24 * 3600 + second, 1, samples.append)
    meter.note_disk(5 * 2**20)
    meter.finish(samples.append)

    assert 500 < len(samples) < 1200
    assert samples[-1] == ResourceSample(cpu_seconds=2.0, disk_mb=5.0)
    assert meter.resources == {
        "memory_peak_mb": 120.0,
        "memory_average_mb": 100.0,
        "cpu_seconds": 2.0,
        "disk_mb": 5.0,
    }
