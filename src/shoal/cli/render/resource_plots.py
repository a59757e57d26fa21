"""What each session used of the machine over time, as small SVG plots."""

from collections.abc import Iterator, Sequence

from shoal.cli.render.columns import seconds
from shoal.model.results import Usage
from shoal.store.timeline import Point

WIDTH, HEIGHT = 220, 40


def memory_text(resources: Usage) -> str:
    """Format the maximum and average memory use."""
    peak, average = resources.get("memory_peak_mb"), resources.get("memory_average_mb")
    parts = ("" if peak is None else f"peak {peak:,.0f} MB", "" if average is None else f"average {average:,.0f} MB")
    return ", ".join(filter(None, parts)) or "-"


def cpu_text(resources: Usage) -> str:
    """Format the CPU time."""
    spent = resources.get("cpu_seconds")
    return "-" if spent is None else f"{spent:,.1f} s"


def disk_text(resources: Usage) -> str:
    """Format the maximum disk use."""
    used = resources.get("disk_mb")
    return "-" if used is None else f"{used:,.1f} MB"


def plot_svg(points: Sequence[Point], unit: str) -> Iterator[str]:
    """Draw *points* as a line from zero up, with its highest value and length; nothing for less than two of them."""
    if len(points) < 2:
        return
    start, length = points[0][0], max(points[-1][0] - points[0][0], 0.001)
    top = max(value for _, value in points)
    label = f"up to {top:,.0f} {unit} in {seconds(length)}"
    places = [
        (WIDTH * (at - start) / length, HEIGHT - (HEIGHT - 2) * value / top if top else HEIGHT) for at, value in points
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}"><title>{label}</title>'
    yield f'<polygon points="0,{HEIGHT} {line} {WIDTH},{HEIGHT}"/><polyline points="{line}"/></svg>'
