"""An agent starts only if the machine has room for it."""

import contextlib
from dataclasses import replace
from pathlib import Path

from shoal.steps.admission import EARLY_SECONDS, LEAST_BYTES, MIB, SETTLED, Admission, Free, free

ROOMY = Free(memory_bytes=8192 * MIB, memory_total_bytes=16384 * MIB, tasks=200, most_tasks=32768)


def test_this_machine_is_read() -> None:
    now = free()

    assert 0 < now.memory_bytes < now.memory_total_bytes
    assert 0 < now.tasks < now.most_tasks


def test_who_was_just_let_in_counts_though_it_took_nothing_yet(tmp_path: Path) -> None:
    time = [0.0]
    tight = replace(ROOMY, memory_bytes=800 * MIB)
    admission = Admission(tmp_path, look=lambda: tight, clock=lambda: time[0])

    with admission.carried(), admission.carried(), admission.carried():
        said = admission.reason()
        time[0] = EARLY_SECONDS + 1
        late = admission.reason()

    assert said is not None
    assert "800 MB of memory are free, 384 MB of them for agents" in said
    assert late is None


def test_who_was_promised_to_be_let_in_counts_before_it_starts(tmp_path: Path) -> None:
    tight = replace(ROOMY, memory_bytes=800 * MIB)
    admission = Admission(tmp_path, look=lambda: tight, clock=lambda: 0.0)

    said = [admission.reason() for _ in range(4)]

    assert said[:3] == [None] * 3
    assert said[3] is not None


def test_who_has_ended_does_not_count_any_more(tmp_path: Path) -> None:
    tight = replace(ROOMY, memory_bytes=800 * MIB)
    admission = Admission(tmp_path, look=lambda: tight, clock=lambda: 0.0)

    for _ in range(20):
        assert admission.reason() is None
        with admission.carried():
            pass


def test_what_is_short_is_said(tmp_path: Path) -> None:
    def said(now: Free) -> str | None:
        return Admission(tmp_path, look=lambda: now).reason()

    assert said(replace(ROOMY, memory_bytes=100 * MIB)) == "100 MB of memory are free, and 512 MB must stay free"
    assert "32700 of at most 32768" in (said(replace(ROOMY, tasks=32700)) or "")
    assert said(ROOMY) is None


def test_less_is_kept_where_those_that_run_took_less(tmp_path: Path) -> None:
    """What is kept for the next ones is twice what each of the others really took, within bounds."""
    time, memory = [0.0], [1200 * MIB]
    admission = Admission(tmp_path, look=lambda: replace(ROOMY, memory_bytes=memory[0]), clock=lambda: time[0])

    with contextlib.ExitStack() as running:
        for _ in range(SETTLED):
            time[0] += EARLY_SECONDS + 1
            assert admission.reason() is None
            running.enter_context(admission.carried())
        time[0] += EARLY_SECONDS + 1
        memory[0] -= SETTLED * MIB
        let_in = sum(admission.reason() is None for _ in range(1000))

    assert let_in == (1200 * MIB - SETTLED * MIB - 512 * MIB) // LEAST_BYTES + 1


def test_as_much_as_ever_is_kept_where_those_that_run_took_much(tmp_path: Path) -> None:
    time, memory = [0.0], [4000 * MIB]
    admission = Admission(tmp_path, look=lambda: replace(ROOMY, memory_bytes=memory[0]), clock=lambda: time[0])

    with contextlib.ExitStack() as running:
        for _ in range(SETTLED):
            time[0] += EARLY_SECONDS + 1
            assert admission.reason() is None
            running.enter_context(admission.carried())
        time[0] += EARLY_SECONDS + 1
        memory[0] = 800 * MIB
        let_in = sum(admission.reason() is None for _ in range(1000))

    assert let_in == 3
