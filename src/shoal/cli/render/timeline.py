"""What each session did at which time, as one SVG."""

import html
from collections.abc import Iterator, Mapping, Sequence

from shoal.cli.output import escape, flat
from shoal.cli.render.columns import beginning, seconds
from shoal.store.timeline import Lane, Span, Tick

MAX_LANES = 200
TEXT_CHARS = 160
NAME_CHARS = 30
LEFT, WIDTH, ROW, TOP = 230, 1000, 20, 24
GRID = 6
LEGEND = (
    ("queue", "queued"),
    ("setup", "set-up"),
    ("run", "running"),
    ("wait", "waiting for the model"),
    ("seal", "sealing"),
    ("check", "verifying"),
    ("call", "tool call"),
    ("bad", "failed or denied"),
)


def timeline_svg(lanes: Sequence[Lane], statuses: Mapping[str, str], start: float) -> Iterator[str]:
    """Draw *lanes* from *start* on, each with its session's status; agents' words are escaped."""
    shown = lanes[:MAX_LANES]
    length = max(max((lane.end for lane in shown), default=start) - start, 0.1)
    height = TOP + ROW * len(shown) + 4
    yield f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="When each agent worked">'
    yield from _grid(length, height)
    for number, lane in enumerate(shown):
        top = TOP + ROW * number
        name = html.escape(beginning(lane.session, NAME_CHARS))
        yield f'<text x="{LEFT - 8}" y="{top + 14}" text-anchor="end">{name}</text>'
        status = statuses.get(lane.session, "")
        yield from (_bar(span, status, top, (start, length)) for span in lane.spans)
        yield from (_mark(tick, top, (start, length)) for tick in lane.ticks)
    yield "</svg>"


def _grid(length: float, height: int) -> Iterator[str]:
    for number in range(GRID + 1):
        x = LEFT + (WIDTH - LEFT - 40) * number / GRID
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{height}"/>'
        yield f'<text class="axis" x="{x:.1f}" y="12" text-anchor="middle">{seconds(length * number / GRID)}</text>'


def _place(at: float, axis: tuple[float, float]) -> float:
    start, length = axis
    share = min(max((at - start) / length, 0.0), 1.0)
    return LEFT + (WIDTH - LEFT - 40) * share


def _bar(span: Span, status: str, top: int, axis: tuple[float, float]) -> str:
    left, right = _place(span.start, axis), _place(span.end, axis)
    top, height = (top + 9, 2) if span.kind == "queue" else (top + 4, 12)
    label = f"{dict(LEGEND)[span.kind]}, {seconds(max(0.0, span.end - span.start))}"
    title = html.escape(f"{label}; {status}" if status else label)
    return (
        f'<rect class="{span.kind}" x="{left:.1f}" y="{top}" width="{max(right - left, 0.5):.1f}" height="{height}">'
        f"<title>{title}</title></rect>"
    )


def _mark(tick: Tick, top: int, axis: tuple[float, float]) -> str:
    x, title = _place(tick.at, axis), html.escape(escape(flat(tick.text)[:TEXT_CHARS]))
    if tick.kind == "bad":
        place = f'x="{x - 1:.1f}" y="{top + 2}" width="2" height="16"'
    else:
        width = max(1.0, _place(tick.at + tick.took, axis) - x - 0.5)
        place = f'x="{x:.1f}" y="{top + 7}" width="{width:.1f}" height="6"'
    return f'<rect class="{tick.kind}" {place}><title>{title}</title></rect>'
