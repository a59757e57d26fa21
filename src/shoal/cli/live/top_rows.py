"""The rows of `shoal top`: runs, and the agents of one run, as texts for its tables."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from shoal.cli.live.frame import AgentCell, agent_cells, clock, describe_action, describe_cost
from shoal.cli.live.text_width import clean, width
from shoal.cli.render.columns import ago, tone
from shoal.dashboard.documents import column
from shoal.dashboard.feed import SiteFeed
from shoal.store.fold import report
from shoal.store.progress import AgentProgress, Phase, RunProgress
from shoal.store.run_state import RunState, SessionState

STYLES = {"good": "green", "bad": "red", "warn": "yellow", "dim": "dim", "bold": "bold", "mark": "cyan", "": ""}
RUN_COLUMNS = ("run", "status", "agents", "time", "cost", "started", "next")
AGENT_COLUMNS = ("agent", "state", "time", "tokens", "cost", "files", "memory", "doing")
NARROW, WIDE = 70, 110
LEFT_OUT = {NARROW: {"tokens", "time", "cost", "started", "files", "memory"}, WIDE: {"files", "memory"}}
"""What terminals below a width do not show."""
MOST_RUNS = 500
LEAST_DOING = 20
PADDING = 2
STALE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table: what it is about, its cells, and what a filter looks for in it."""

    key: str
    cells: Mapping[str, Text]
    words: str


class RunRows:
    """The rows of all runs; those of ended runs are made again only when something changed, or is long ago."""

    def __init__(self, site: SiteFeed) -> None:
        self._site = site
        self._ended: dict[str, Row] = {}
        self._stale_at = 0.0
        self.live = 0
        """How many runs have not ended."""

    def poll(self) -> None:
        """Read what is new of the repository."""
        changed = self._site.poll()
        if time.monotonic() > self._stale_at:
            self._stale_at = time.monotonic() + STALE_SECONDS
            self._ended.clear()
        for name in changed:
            self._ended.pop(name, None)

    def rows(self, filter_: str) -> list[Row]:
        """Give the latest runs in which *filter_* is found, the newest first."""
        names = self._site.runs[::-1][:MOST_RUNS]
        self.live = 0
        rows = [self._ended.get(name) or self._make(name) for name in names]
        return [row for row in rows if filter_ in row.words]

    def _make(self, name: str) -> Row:
        run = self._site.run(name)
        row = _run_row(run, self._site.progress(name), time.time())
        if run.status.is_ended:
            self._ended[name] = row
        else:
            self.live += 1
        return row


def choose_columns(columns: Sequence[str], room: int) -> tuple[str, ...]:
    """Choose the columns that a table of *room* cells shows."""
    left_out = next((names for most, names in LEFT_OUT.items() if room < most), set[str]())
    return tuple(name for name in columns if name not in left_out)


def agent_rows(run: RunState, progress: RunProgress | None, filter_: str, room: int) -> list[Row]:
    """Give the agents of a run in which *filter_* is found, or all where it is found in none, *room* cells wide."""
    now = time.time()
    agents = list(_agents(run, progress))
    table = [_agent_cells(session, agent, now) for session, agent in agents]
    shown = choose_columns(AGENT_COLUMNS, room)
    others = sum(max(map(width, (name, *(cells[name].plain for cells in table)))) for name in shown[:-1])
    rest = max(LEAST_DOING, room - others - PADDING * len(shown))
    rows = [
        _agent_row(agent, cells, describe_action(agent, rest, now, _plain))
        for (_, agent), cells in zip(agents, table, strict=True)
    ]
    return [row for row in rows if filter_ in row.words] or rows


def waiting_notes(run: RunState) -> Iterator[str]:
    """Say what a run waits for: gates, and what keeps agents from starting."""
    for step in run.waiting:
        yield f'{clean(step.step)} asks: "{clean(step.gate.message if step.gate else "")}" · a answers'
    if run.waits_for and not run.status.is_ended:
        yield f"waiting: {clean(run.waits_for)}"


def _run_row(run: RunState, progress: RunProgress | None, now: float) -> Row:
    summary = report(run)
    workers = summary.workers
    good = sum(worker.status.is_good for worker in workers)
    usage = summary.usage if progress is None or run.status.is_ended else progress.usage
    cells = {
        "run": Text(clean(run.run)),
        "status": Text(run.status.value, STYLES[tone(run.status)]),
        "agents": Text(f"{good}/{len(workers)}", justify="right"),
        "time": Text(clock(run.duration_seconds if run.status.is_ended else now - run.started_at), justify="right"),
        "cost": Text(describe_cost(usage), justify="right"),
        "started": Text(ago(now - run.started_at)),
        "next": Text(column(run, summary)),
    }
    sessions = [session for step in run.steps.values() for session in step.sessions.values()]
    words = [run.run, run.status.value, *(f"{session.session} {session.status.value}" for session in sessions)]
    return Row(run.run, cells, " ".join(words).casefold())


def _agents(run: RunState, progress: RunProgress | None) -> Iterator[tuple[SessionState, AgentProgress]]:
    for step in run.steps.values():
        for session in step.sessions.values():
            seen = None if progress is None else progress.find(session.session)
            yield session, seen or _past(step.step, session)


def _past(step: str, session: SessionState) -> AgentProgress:
    """Describe an agent that was not seen at work."""
    return AgentProgress(
        step=step,
        session=session.session,
        index=session.index,
        attempt=session.attempt,
        task=session.prompt,
        started_at=session.started_at,
        phase=Phase.ENDED,
        usage=dict(session.result.usage) if session.result else {},
        result=session.result,
    )


def _agent_cells(session: SessionState, agent: AgentProgress, now: float) -> dict[str, Text]:
    """Give all cells of an agent but the last one."""
    cells = agent_cells(agent, now)
    if session.result is None and session.status.is_interrupted:
        cells |= {"state": AgentCell(session.status.value, tone(session.status)), "time": AgentCell("-", is_right=True)}
    return {
        name: Text(cell.text, STYLES[cell.tone], justify="right" if cell.is_right else "left")
        for name, cell in cells.items()
    }


def _agent_row(agent: AgentProgress, cells: dict[str, Text], action: str) -> Row:
    words = [*(cell.plain for cell in cells.values()), agent.action, agent.task]
    return Row(agent.session, {**cells, "doing": Text(action)}, " ".join(words).casefold())


def _plain(text: str, _colour: str) -> str:
    return text


def look_alike(first: Text, second: Text) -> bool:
    """Say whether two cells look the same."""
    return (first.plain, first.style) == (second.plain, second.style)
