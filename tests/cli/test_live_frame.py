"""The live view of a run: what it shows, and that it fits every terminal whatever agents print."""

import re
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.cli.live.frame import Pane, Size, ViewState, draw_frame, log_lines
from shoal.cli.live.text_width import CUT, clean, fit, width, wrap
from shoal.cli.live.view import FRAME_SECONDS
from shoal.cli.output import Paint
from shoal.model.activity import Act
from shoal.model.events import (
    AgentActed,
    AgentEnded,
    AgentStarted,
    ClientHeard,
    Event,
    GateOpened,
    Output,
    OverlapSeen,
    Recorded,
    ResourcesSampled,
    RunStarted,
    SessionEnded,
    SessionStarted,
    StepStarted,
    Waiting,
)
from shoal.model.gateway import ModelAnswered
from shoal.model.merge import Overlap
from shoal.model.resources import ResourceSample
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.store.progress import RunProgress

PLAIN: Paint = lambda text, colour: text  # noqa: E731
START = 1000.0
HOSTILE = st.text(st.characters() | st.sampled_from(" \n\t\x1b\x07\r日本🙂👩‍👧é\u202e\u200b/#[]"), max_size=60)


def session(number: int, name: str = "") -> str:
    return f"fix{name}-{number:06x}"


def started(number: int, prompt: str = "fix it", name: str = "") -> SessionStarted:
    return SessionStarted(
        run="r",
        step="fix",
        session=session(number, name),
        index=number,
        branch="b",
        base="c",
        strategy="overlay",
        workspace="w",
        prompt=prompt,
    )


def running(number: int) -> AgentStarted:
    return AgentStarted(run="r", session=session(number), pid=1)


def acted(number: int, act: Act, tool: str = "", text: str = "", *, ok: bool = True, seconds: float = 0) -> AgentActed:
    return AgentActed(run="r", session=session(number), act=act, tool=tool, text=text, call="c", ok=ok, seconds=seconds)


def said(number: int, text: str) -> Output:
    return Output(run="r", session=session(number), stream="stdout", text=text)


def ended(number: int, status: Status, error: str | None = None) -> SessionEnded:
    good = status is Status.SUCCEEDED
    result = WorkerResult(
        index=number,
        session=session(number),
        status=status,
        error=error,
        duration_seconds=4,
        branch="agent/fix/3f9c" if good else None,
        files_changed=2 if good else 0,
    )
    return SessionEnded(run="r", step="fix", session=session(number), result=result)


def watch(*events: Event, workers: int = 3, at: float = START) -> RunProgress:
    progress = RunProgress()
    run = RunStarted(run="r", name="p", base="b", wall="w", workspace="o", owner=1, stages=("fix", "rest"))
    begin: tuple[Event, ...] = (run, StepStarted(run="r", step="fix", workers=workers, on_failure="fail_fast"))
    for seq, event in enumerate((*begin, *events), 1):
        progress.take(Recorded(seq, at, event))
    return progress


def draw(progress: RunProgress, columns: int = 80, rows: int = 24, shown: ViewState | None = None) -> list[str]:
    return draw_frame(progress, shown or ViewState(), Size(columns, rows), START + 12, PLAIN)


def row_of(lines: Sequence[str], number: int) -> str:
    return next(line for line in lines if session(number) in line)


@pytest.mark.parametrize(
    ("events", "state", "doing"),
    [
        ([], "set-up", ""),
        ([running(0)], "running", "no output yet"),
        ([running(0), said(0, "reading\nrunning the tests\n")], "running", "running the tests"),
        ([running(0), acted(0, Act.TOOL, "Edit", "src/x.py")], "running", "Edit src/x.py"),
        ([running(0), acted(0, Act.TOOL, "Bash", "pytest")], "running", "Bash: pytest"),
        ([running(0), acted(0, Act.TOOL, "background", "make")], "running", "background: make"),
        (
            [running(0), acted(0, Act.TOOL, "Bash", "pytest"), acted(0, Act.RESULT, text="1 failed", ok=False)],
            "running",
            "Bash: pytest → failed",
        ),
        ([running(0), acted(0, Act.RETRY, text="429 busy", seconds=30)], "rate limit", "again in 18 s: 429 busy"),
        ([running(0), acted(0, Act.RETRY, text="reset", seconds=30)], "retrying", "again in 18 s: reset"),
        ([running(0), acted(0, Act.RETRY, text="429", seconds=30), said(0, "on it")], "running", "on it"),
        ([running(0), acted(0, Act.DENIED, "Bash", "rm -rf")], "running", "denied: Bash rm -rf"),
        ([running(0), AgentEnded(run="r", session=session(0), exit_code=0, signal=None)], "sealing", ""),
        (
            [running(0), AgentEnded(run="r", session=session(0), exit_code=0, signal=None), running(0)],
            "verifying",
            "",
        ),
        ([running(0), ended(0, Status.SUCCEEDED)], "succeeded", "2 files, agent/fix/3f9c"),
        ([running(0), ended(0, Status.FAILED, "it broke\nlong\nstory")], "failed", "it broke"),
    ],
)
def test_a_row_says_what_its_agent_does(events: list[Event], state: str, doing: str) -> None:
    row = row_of(draw(watch(started(0), *events)), 0)

    assert re.fullmatch(rf"  fix-000000  {state} +0:\d\d *{re.escape(doing)}", row), row


@pytest.mark.parametrize("columns", [60, 80, 160])
def test_the_last_action_tokens_and_cost_are_there_in_every_width(columns: int) -> None:
    usage = ClientHeard(
        run="r",
        client_session="",
        session=session(0),
        usage={"input_tokens": 12_000, "output_tokens": 345, "cost_usd": 0.5},
    )
    progress = watch(started(0), running(0), said(0, "running the tests"), usage)

    text = "\n".join(draw(progress, columns)[:3])

    assert "running the tests" in text
    assert "12.3k" in text
    assert "$0.500" in text


def test_the_end_of_the_picture_counts_what_is_queued_and_names_what_is_next() -> None:
    progress = watch(started(0), ended(0, Status.SUCCEEDED), started(1), running(1), workers=5)

    total, counted = draw(progress)[-2:]

    assert "1/5 ended · 0:12 · ETA 0:" in total
    assert counted == "3 queued · next: fix 3 of 5 · 1 succeeded · 1 running · 1 step to come"


def test_what_the_gateway_counts_is_seen_while_an_agent_works() -> None:
    heard = ClientHeard(run="r", session=session(0), client_session="", usage={"input_tokens": 10.0})
    used = {"input_tokens": 1000.0, "output_tokens": 200.0, "cost_usd": 0.01}
    answer = ModelAnswered(run="r", session=session(0), upstream="anthropic", status=200, usage=used)

    row = row_of(draw(watch(started(0), running(0), heard, answer, answer, heard)), 0)

    assert ("2.4k" in row, "$0.020" in row) == (True, True)


def test_an_estimate_that_has_passed_is_not_shown() -> None:
    total, _ = draw(watch(started(0), ended(0, Status.SUCCEEDED), started(1), running(1), workers=2))[-2:]

    assert "1/2 ended · 0:12" in total
    assert "ETA" not in total


def test_agents_that_do_not_fit_are_counted_and_those_at_work_stay() -> None:
    over = [event for number in range(100) for event in (started(number), ended(number, Status.SUCCEEDED))]
    progress = watch(*over, started(100), running(100), started(101), ended(101, Status.FAILED, "no"), workers=200)

    lines = draw(progress, rows=10)

    assert len(lines) <= 9
    assert row_of(lines, 100)
    assert row_of(lines, 101)
    assert any(re.search(r"… \d+ more: \d+ succeeded", line) for line in lines)


def test_200_agents_are_drawn_in_a_twentieth_of_a_core() -> None:
    begun = [event for number in range(200) for event in (started(number), running(number), said(number, "words " * 9))]
    progress, frames = watch(*begun, workers=200), 50
    draw(progress, 120, 50)

    before = time.process_time()
    for _ in range(frames):
        draw(progress, 120, 50)

    assert time.process_time() - before < frames * FRAME_SECONDS * 0.05


def test_an_overlap_has_a_mark_and_a_legend() -> None:
    overlap = Overlap(one=session(0), other=session(1), paths=("a",), files=1)

    lines = draw(watch(started(0), started(1), started(2), OverlapSeen(run="r", overlap=overlap)))

    assert [row_of(lines, number)[:2] for number in range(3)] == [" ~", " ~", "  "]
    assert any(line.startswith("~ changed the same files") for line in lines)


def test_a_new_attempt_takes_the_row_of_the_last_and_what_it_spent_still_counts() -> None:
    usage = {"input_tokens": 100.0}
    again = SessionStarted(
        run="r", step="fix", session="fix-again", index=0, branch="b", base="c", strategy="o", workspace="w", attempt=2
    )
    progress = watch(
        started(0),
        ClientHeard(run="r", session=session(0), client_session="", usage=usage),
        ended(0, Status.FAILED, "no"),
        again,
    )

    lines = draw(progress)

    assert [agent.session for agent in progress.agents] == ["fix-again"]
    assert any("set-up (2)" in line for line in lines)
    assert "100 tokens" in "\n".join(lines)


def test_a_wide_terminal_shows_the_memory_of_each_agent() -> None:
    sample = ResourcesSampled(run="r", session=session(0), sample=ResourceSample(memory_mb=1212.4))

    lines = draw(watch(started(0), running(0), sample, started(1)), 160)

    assert "1,212 MB" in row_of(lines, 0)
    assert "memory" in lines[0]


def test_a_gate_is_asked_with_its_keys() -> None:
    lines = draw(watch(GateOpened(run="r", step="ship", message="Ship it?")), shown=ViewState(has_keys=True))

    assert 'approve ship? "Ship it?" · y approve · n reject · d diff' in lines


def test_a_log_shows_words_and_tools() -> None:
    progress = watch(
        started(0), said(0, "hello\x1b[31m"), acted(0, Act.TOOL, "Bash", "ls"), acted(0, Act.RESULT, ok=False)
    )
    agent = progress.agents[0]

    lines = draw(progress, shown=ViewState(pane=Pane(title="log", lines=log_lines(agent))))

    assert lines[:4] == ["log", "hello\\x1b[31m", "-- tool: Bash ls --", "-- result → failed --"]


@st.composite
def runs(draw: st.DrawFn) -> RunProgress:
    """A run of any number of agents with hostile names, tasks, words and gates."""
    name, text, prompt, act = draw(HOSTILE), draw(HOSTILE), draw(HOSTILE), draw(st.sampled_from(list(Act)))
    events: list[Event] = []
    for index in range(draw(st.integers(0, 230))):
        named = session(index, name)
        action = replace(acted(index, act, text, text, ok=False, seconds=1e9), session=named)
        lives: list[list[Event]] = [
            [],
            [replace(running(index), session=named), replace(said(index, text), session=named)],
            [action],
            [replace(ended(index, Status.FAILED, text), session=named)],
        ]
        events += [started(index, prompt, name), *draw(st.sampled_from(lives))]
    if draw(st.booleans()):
        events += [GateOpened(run="r", step=name, message=text * 20), Waiting(run="r", reason=text)]
    return watch(*events, workers=300)


@settings(max_examples=50, deadline=None)
@given(runs(), st.integers(40, 200), st.integers(2, 60), st.booleans(), HOSTILE)
def test_no_picture_is_larger_than_its_terminal(
    progress: RunProgress, columns: int, rows: int, has_keys: bool, note: str
) -> None:
    agents = progress.agents
    selected = agents[len(agents) // 2].session if agents else None
    for pane in (None, Pane(title=note, lines=[clean(note)] * 30, above=3)):
        shown = ViewState(selected=selected, pane=pane, note=note, question=clean(note), has_keys=has_keys)
        lines = draw(progress, columns, rows, shown)

        assert all(width(line) <= columns for line in lines), lines
        assert all(line.isprintable() for line in lines), lines
        assert len(lines) <= max(3, rows - 1)


@settings(max_examples=300, deadline=None)
@given(HOSTILE, st.integers(1, 60))
def test_a_shortened_text_fits_and_breaks_no_word_in_silence(text: str, room: int) -> None:
    whole = clean(text)

    shown = fit(whole, room)

    assert width(shown) <= room
    assert all(word in whole.split(" ") or CUT in word for word in shown.split(" "))


@settings(max_examples=300, deadline=None)
@given(HOSTILE, st.integers(10, 60))
def test_wrapped_lines_fit_and_hold_every_word(text: str, room: int) -> None:
    whole = clean(text)

    lines = wrap(whole, room, "  ")

    assert all(width(line) <= room for line in lines)
    assert "".join("".join(lines).split()).replace(CUT, "") == "".join(whole.split()).replace(CUT, "")


def test_a_wrapped_row_of_a_table_keeps_its_columns() -> None:
    assert wrap("  parser   succeeded  3 files: src/a.py", 30, "  ") == ["  parser   succeeded  3 files:", "  src/a.py"]


def test_the_end_of_a_path_stays() -> None:
    assert fit("Edit src/shoal/cli/live/frame.py", 20) == "Edit …/live/frame.py"


def test_wide_characters_are_counted_as_the_terminal_does() -> None:
    assert width("日本🙂e\u0301") == 7
    assert fit("日本語 日本語", 9) == "日本語 …"
