"""`shoal status`: how a run stands."""

import asyncio
import time

from shoal.cli import output
from shoal.cli.document import run_document, text
from shoal.cli.options import HERE, Json, Repo, Run
from shoal.cli.place import found
from shoal.cli.program import program
from shoal.cli.render.approve import waiting_document, waiting_lines
from shoal.cli.render.status import merging_lines, status_lines
from shoal.store.find import find_run
from shoal.store.fold import report


def command(run: Run = None, json: Json = False, repo: Repo = HERE) -> int:
    """Show how a run stands, the latest or another."""
    state = asyncio.run(found(repo)).state()
    chosen = find_run(state, run)
    told = report(chosen, time.time())
    if json:
        deliveries = [one.as_fields() for one in chosen.deliveries.values()]
        more = {"waiting": waiting_document(chosen), "deliveries": deliveries}
        output.say(text(run_document(told) | more))
        return 0
    others = [one for one in state.runs.values() if one.run != chosen.run]
    waiting = list(waiting_lines(chosen, output.paint()))
    merging = list(merging_lines(chosen, program(), output.paint()))
    lines = status_lines(told, others, paint=output.paint(), waiting=waiting, merging=merging)
    output.say("\n".join(lines))
    return 0
