"""Draw one frame of a run as lines that fit a terminal: a pure function of the progress, the size and the time."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shoal.cli.live.text_width import clean, column, fit, join_fitting, pad, width, wrap
from shoal.cli.output import Paint
from shoal.cli.render.columns import count, tone
from shoal.cli.render.report import why
from shoal.model.events import AgentActed, Output
from shoal.model.results import Usage
from shoal.store.progress import WAITING, AgentProgress, Phase, RunProgress

NARROW = 70
"""Below this width an agent has two lines."""
WIDE = 120
WIDEST_NAME = 28
WIDEST_STATE = 11
WIDEST_BAR = 30
TASK_PART = 4
"""In wide terminals, tasks take one part in four of the width."""
OPTIONAL = ("tokens", "cost", "files", "memory")
"""Columns that are left out if no agent has a value in them."""
GAP = "  "
TONES = {Phase.SETUP: "dim", Phase.RATE_LIMIT: "warn", Phase.RETRYING: "warn", Phase.RUNNING: "mark"}
LEGEND = "~ changed the same files as another agent · x in conflict with another agent"
KEYS = ("↑↓ choose", "l logs", "d diff", "x stop agent", "q quit")
PANE_KEYS = "↑↓ scroll · esc back"
LEAST_HEIGHT = 3
NO_OUTPUT = "no output yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pane:
    """A text shown over the rows of agents, scrolled *above* its end by that many lines."""

    title: str
    lines: Sequence[str]
    above: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """What the person chose to see."""

    selected: str | None = None
    pane: Pane | None = None
    question: str = ""
    """Our question that waits for `y` or `n`."""
    note: str = ""
    has_keys: bool = False


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a terminal in cells."""

    width: int
    height: int


def draw_frame(progress: RunProgress, shown: ViewState, size: Size, now: float, paint: Paint) -> list[str]:
    """Draw the run in at most `height - 1` lines, none of them wider than the terminal."""
    room = max(LEAST_HEIGHT, size.height - 1)
    if not progress.run:
        return [paint(fit("preparing the run …", size.width), "dim")]
    footer = list(_footer(progress, shown, size, now, paint))[:room]
    if shown.pane is not None:
        return [*_pane_lines(shown.pane, size, room - len(footer), paint), *footer]
    rows = _rows(progress.agents, shown, size, room - len(footer), now, paint)
    return [*rows, *footer]


def _footer(progress: RunProgress, shown: ViewState, size: Size, now: float, paint: Paint) -> Iterator[str]:
    for step, gate in progress.gates.items():
        answers = " · y approve · n reject · d diff" if shown.has_keys else ""
        yield from _wrap_painted(f'approve {clean(step)}? "{clean(gate.message)}"{answers}', size, "warn", paint)
    if progress.waiting:
        yield from _wrap_painted(f"waiting: {clean(progress.waiting)}", size, "warn", paint)
    if shown.question:
        yield from _wrap_painted(f"{shown.question} (y/n)", size, "bold", paint)
    if shown.note:
        yield from _wrap_painted(clean(shown.note), size, "dim", paint)
    yield _total_line(progress, size, now, paint)
    yield paint(_count_line(progress, size.width), "dim")
    if shown.has_keys:
        keys = PANE_KEYS if shown.pane else join_fitting(KEYS, " · ", size.width)
        yield paint(fit(keys, size.width), "dim")


def _wrap_painted(text: str, size: Size, colour: str, paint: Paint) -> list[str]:
    """Wrap a text to a third of the terminal at most."""
    lines = wrap(text, size.width, "  ")
    most = max(1, size.height // 3)
    kept = lines if len(lines) <= most else [*lines[: most - 1], fit(lines[most - 1], size.width - 2) + " …"]
    return [paint(line, colour) for line in kept]


def _total_line(progress: RunProgress, size: Size, now: float, paint: Paint) -> str:
    ended = sum(agent.is_ended for agent in progress.agents)
    total = len(progress.agents) + progress.count_queued()
    left = progress.seconds_left(now)
    usage = progress.usage
    parts = [
        f"{ended}/{total} ended",
        clock(max(0.0, now - progress.started_at)) if progress.started_at else "",
        f"ETA {clock(left)}" if left is not None and left >= 1 else "",
        describe_cost(usage) if "cost_usd" in usage else "",
        f"{_tokens(usage)} tokens" if _tokens(usage) != "-" else "",
    ]
    words = join_fitting(parts, " · ", size.width)
    bar = min(WIDEST_BAR, size.width - width(words) - 1)
    if bar < len(GAP) * 3:
        return words
    done = bar * ended // total if total else 0
    return f"{paint('━' * done, 'good')}{paint('─' * (bar - done), 'dim')} {words}"


def _count_line(progress: RunProgress, room: int) -> str:
    states = Counter(agent.state for agent in progress.agents)
    counted = [f"{number} {state}" for state, number in states.items()]
    queued, later, follows = progress.count_queued(), progress.later_stages(), progress.next_name()
    parts = [
        "merging" if progress.is_merging else "",
        f"{queued} queued" if queued else "",
        f"next: {clean(follows)}" if follows else "",
        *counted,
        f"{count(len(later), 'step')} to come" if later else "",
    ]
    return join_fitting([fit(part, room) for part in parts], " · ", room)


def _pane_lines(pane: Pane, size: Size, room: int, paint: Paint) -> list[str]:
    """Show as much of the end of a text as there is room for."""
    wrapped = [line for text in pane.lines for line in wrap(text, size.width, "  ")]
    most = max(0, room - 1)
    above = min(pane.above, max(0, len(wrapped) - most))
    end = len(wrapped) - above
    head = paint(fit(clean(pane.title), size.width), "bold")
    return [head, *wrapped[max(0, end - most) : end]][:room]


def _rows(
    agents: Sequence[AgentProgress], shown: ViewState, size: Size, room: int, now: float, paint: Paint
) -> Iterator[str]:
    """Draw as many agents as there is room for, and count the others."""
    if not agents or room <= 0:
        return
    height = 2 if size.width < NARROW else 1
    has_head = height == 1 and room >= LEAST_HEIGHT
    has_legend = any(agent.overlaps for agent in agents) and room >= 2 * LEAST_HEIGHT
    lines = room - has_head - has_legend
    chosen = agents if len(agents) * height <= lines else _choose(agents, shown.selected, max(0, lines - 1) // height)
    folded = len(agents) - len(chosen)
    if chosen:
        yield from _table(chosen, shown, size, now, paint, has_head=has_head)
    if folded:
        drawn = {agent.session for agent in chosen}
        states = Counter(agent.state for agent in agents if agent.session not in drawn)
        counts = ", ".join(f"{number} {state}" for state, number in states.most_common())
        yield paint(fit(f"  … {folded} more: {counts}", size.width), "dim")
    if has_legend:
        yield paint(fit(LEGEND, size.width), "dim")


def _choose(agents: Sequence[AgentProgress], selected: str | None, most: int) -> list[AgentProgress]:
    """Choose the agents to draw: the selected one, running ones, failed ones, then the others."""

    def rank(agent: AgentProgress) -> int:
        if agent.session == selected:
            return 0
        if agent.result is None:
            return 1
        return 3 if agent.result.status.is_good else 2

    ranked = sorted(range(len(agents)), key=lambda place: (rank(agents[place]), place))
    return [agents[place] for place in sorted(ranked[:most])]


@dataclass(frozen=True, slots=True)
class AgentCell:
    """A cell of a table, and its style."""

    text: str
    tone: str = ""
    is_right: bool = False


def _table(
    agents: Sequence[AgentProgress], shown: ViewState, size: Size, now: float, paint: Paint, *, has_head: bool
) -> Iterator[str]:
    rows = [agent_cells(agent, now) for agent in agents]
    widths = _widths(rows, size)
    rest = size.width - 2 - sum(width + len(GAP) for width in widths.values())
    if has_head:
        names = {name: AgentCell(name, is_right=row.is_right) for name, row in rows[0].items()}
        yield paint(fit(f"  {_join(names, widths, lambda text, _: text)}{GAP}doing".rstrip(), size.width), "dim")
    for agent, row in zip(agents, rows, strict=True):
        is_selected = agent.session == shown.selected and shown.has_keys
        head = f"{'›' if is_selected else ' '}{_mark(agent, paint)}{_join(row, widths, paint)}"
        if size.width >= NARROW:
            yield f"{head}{GAP}{describe_action(agent, rest, now, paint)}".rstrip()
        else:
            yield head.rstrip()
            yield f"    {describe_action(agent, size.width - 4, now, paint)}".rstrip()


def _mark(agent: AgentProgress, paint: Paint) -> str:
    if agent.conflicts:
        return paint("x", "bad")
    return paint("~", "warn") if agent.overlaps else " "


def agent_cells(agent: AgentProgress, now: float) -> dict[str, AgentCell]:
    """Return the cells of an agent by column."""
    status = TONES.get(agent.phase, "") if agent.result is None else tone(agent.result.status)
    again = f" ({agent.attempt})" if agent.attempt > 1 else ""
    return {
        "agent": AgentCell(clean(agent.session)),
        "task": AgentCell(clean(agent.task), "dim"),
        "state": AgentCell(f"{agent.state}{again}", status),
        "time": AgentCell(clock(agent.seconds(now)), is_right=True),
        "tokens": AgentCell(_tokens(agent.usage), is_right=True),
        "cost": AgentCell(describe_cost(agent.usage), is_right=True),
        "files": AgentCell(_files(agent), is_right=True),
        "memory": AgentCell(_memory(agent), is_right=True),
    }


def _widths(rows: Sequence[Mapping[str, AgentCell]], size: Size) -> dict[str, int]:
    """Choose the columns that fit the terminal, and their widths."""
    room = size.width
    most = {
        "agent": min(WIDEST_NAME, max(8, room // 5)) if room >= NARROW else room - 30,
        "task": room // TASK_PART if room >= WIDE else 0,
        "state": WIDEST_STATE + (4 if room >= NARROW else 0),
        "time": 8,
        "tokens": 6,
        "cost": 7 if room >= 48 else 0,
        "files": 5 if room >= WIDE else 0,
        "memory": 9 if room >= WIDE else 0,
    }
    texts = {name: [row[name].text for row in rows] for name in most}
    heads = {name: [name] if room >= NARROW else [] for name in most}
    is_shown = {name: name not in OPTIONAL or set(texts[name]) != {"-"} for name in most}
    return {name: column([*texts[name], *heads[name]], most[name]) for name in most if most[name] and is_shown[name]}


def _join(row: Mapping[str, AgentCell], widths: Mapping[str, int], paint: Paint) -> str:
    cells = []
    for name, room in widths.items():
        cell = row[name]
        text = pad(fit(cell.text, room), room, is_right=cell.is_right)
        cells.append(paint(text, cell.tone) if cell.tone else text)
    return GAP.join(cells)


def describe_action(agent: AgentProgress, room: int, now: float, paint: Paint) -> str:
    """Describe an agent's last action, or its result."""
    if room <= 0:
        return ""
    if agent.result is not None:
        reason = why(agent.result)
        if reason is not None:
            return paint(fit(clean(reason.split("\n")[0]), room), "bad" if not agent.result.status.is_good else "dim")
        files = count(agent.result.files_changed, "file")
        return fit(f"{files}, {agent.result.branch}" if agent.result.branch else "no changes", room)
    if agent.phase in WAITING:
        seconds = max(0, round(agent.waits_until - now))
        return paint(fit(f"again in {seconds} s: {clean(agent.action)}", room), "warn")
    if agent.phase is Phase.RUNNING and not agent.action:
        return paint(fit(NO_OUTPUT, room), "dim")
    if agent.has_failed:
        mark = " → failed"
        return fit(clean(agent.action), max(1, room - len(mark))) + paint(mark, "bad") if room > len(mark) else ""
    return fit(clean(agent.action), room)


def _files(agent: AgentProgress) -> str:
    """Count changed files; while an agent works, at least those that it reported."""
    if agent.result is not None:
        return str(agent.result.files_changed)
    return f"{len(agent.edited)}+" if agent.edited else "-"


def _memory(agent: AgentProgress) -> str:
    """Return how much memory an agent uses, or used at most."""
    if agent.result is not None:
        used = agent.result.resources.get("memory_peak_mb")
    else:
        used = None if agent.sample is None else agent.sample.memory_mb
    return "-" if used is None else f"{used:,.0f} MB"


def _tokens(usage: Usage) -> str:
    number = usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
    if not number:
        return "-"
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            shown = number / unit
            return f"{shown:.1f}{name}" if shown < 100 else f"{shown:.0f}{name}"
    return f"{number:.0f}"


def describe_cost(usage: Usage) -> str:
    """Format the cost, or `-` if it is unknown."""
    cost = usage.get("cost_usd")
    if cost is None:
        return "-"
    return f"${cost:.3f}" if cost < 1 else f"${cost:.2f}" if cost < 1000 else f"${cost:.0f}"


def clock(seconds: float) -> str:
    """Format a duration as `0:05`, `12:34` or `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def log_lines(agent: AgentProgress) -> list[str]:
    """Return the end of an agent's output and activities, line by line."""
    return [line for event in agent.tail for line in _event_lines(event)]


def _event_lines(event: Output | AgentActed) -> Iterator[str]:
    if isinstance(event, Output):
        yield from (clean(line) for line in event.text[-4000:].split("\n"))
        return
    text = clean(f"{event.tool} {event.text}".strip())
    yield f"-- {event.act.value}{': ' if text else ''}{text}{'' if event.ok else ' → failed'} --"
