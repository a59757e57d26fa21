"""`shoal nodes`: the machines that can run agents, and what each offers."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.options import HERE, Json, Repo
from shoal.cli.output import Paint, escape
from shoal.cli.render.columns import columns, heading, join_cells
from shoal.errors import BadInput, ExitCode
from shoal.executors.inspect_nodes import NodeReport, inspect_nodes
from shoal.model.nodes import NodeAddress, parse_nodes
from shoal.pipeline.names import OWN_FILE, own_file
from shoal.store.documents import text

Nodes = Annotated[
    str | None,
    typer.Option("--on", metavar="NODES", help=f"Nodes such as `build1:8,pipe:4`; default: those of {OWN_FILE}."),
]
HEAD = ("node", "ready", "agents", "sandboxes", "limits", "cpus", "load", "free memory", "free disk", "version")
GIB = 1024


def command(nodes: Nodes = None, json: Json = False, repo: Repo = HERE) -> int:
    """List the machines that can run agents, with what each offers."""
    addresses = parse_nodes(nodes) if nodes is not None else _read_own_nodes(repo)
    found = asyncio.run(inspect_nodes(addresses, os.environ))
    if json:
        output.print_out(text({"nodes": [_document(report) for report in found]}))
    else:
        output.print_out("\n".join(node_lines(found, output.paint())))
    return ExitCode.SUCCESS if all(report.offer is not None for report in found) else ExitCode.UNAVAILABLE


def _read_own_nodes(repo: Repo) -> tuple[NodeAddress, ...]:
    from shoal.pipeline.keys.nodes import build_nodes
    from shoal.pipeline.load import load  # importing the YAML reader takes as long as all the rest

    file = own_file(repo)
    found = build_nodes(load(file).shape.runtime.nodes) if file.is_file() else ()
    if not found:
        raise BadInput(f"no nodes: name some with `--on`, or in `runtime.nodes` of {OWN_FILE}")
    return found


def node_lines(found: Sequence[NodeReport], paint: Paint) -> Iterator[str]:
    """Yield a row for each node, and why one is not available."""
    head, *rows = columns([HEAD, *map(_row, found)])
    yield heading(head, paint)
    for report, row in zip(found, rows, strict=True):
        row[1] = paint(row[1], "bad" if report.offer is None else "good")
        yield join_cells(row)
        if report.offer is None:
            yield paint(f"    {escape(report.why)}" + (f"; {escape(report.remedy)}" if report.remedy else ""), "warn")
            continue
        if report.node.labels:
            named = ", ".join(f"{name}: {value}" for name, value in report.node.labels.items())
            yield paint(f"    labels: {escape(named)}", "dim")
        for name, why in report.offer.missing.items():
            yield paint(f"    {escape(name)}: {escape(why)}", "dim")


def _row(report: NodeReport) -> tuple[str, ...]:
    offer = report.offer
    if offer is None:
        return (escape(report.node.name), "no", *("-" for _ in HEAD[2:]))
    load = offer.load
    cells = (
        report.node.name,
        "yes",
        str(report.capacity),
        ", ".join(offer.sandboxes) or "none",
        offer.limits,
        str(offer.processors),
        f"{load.cpu:.1f}",
        f"{load.memory_free_mb / GIB:.1f} GB",
        f"{load.disk_free_mb / GIB:.0f} GB",
        offer.version,
    )
    return tuple(map(escape, cells))


def _document(report: NodeReport) -> dict[str, object]:
    offer, node = report.offer, report.node
    known: dict[str, object] = {"node": node.name, "carrier": node.carrier, "labels": dict(node.labels)}
    if offer is None:
        return {**known, "ready": False, "why": report.why, "remedy": report.remedy}
    fields = ("version", "host", "system", "processors", "memory_mb", "sandboxes", "missing", "limits", "clients")
    load = {name: getattr(offer.load, name) for name in ("cpu", "memory_free_mb", "disk_free_mb")}
    return {
        **known,
        "ready": True,
        "capacity": report.capacity,
        **{name: getattr(offer, name) for name in fields},
        "load": load,
    }
