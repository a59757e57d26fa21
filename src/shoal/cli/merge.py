"""`shoal merge`: bring the work of a run together, and into a branch of yours where you say so."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from shoal.cli import output
from shoal.cli.document import text
from shoal.cli.options import HERE, Json, Repo, Run
from shoal.cli.place import Place, found
from shoal.cli.program import program
from shoal.cli.render.merge import asked_line, merge_lines, preview_lines, undo_lines
from shoal.engine.merge.desk import Desk, MergeAsk
from shoal.engine.merge.merge import merge, preview
from shoal.engine.merge.undo import undo
from shoal.errors import BadInput
from shoal.model.merge import MergeReport, Strategy
from shoal.store import ledger
from shoal.store.find import find_run, find_session
from shoal.store.fold import RunState, State, report

LEFT_FOR_A_PERSON = 4

Sessions = Annotated[
    list[str] | None,
    typer.Argument(metavar="SESSION…", help="Only these, in this order; else all that ended well.", show_default=False),
]
How = Annotated[
    Literal["review", "auto", "squash", "rebase", "octopus"],
    typer.Option(
        help="review and auto: a merge commit each; squash: a commit each; rebase: their own commits; octopus: one "
        "merge for all. review asks before it moves a branch of yours."
    ),
]
Into = Annotated[str | None, typer.Option(metavar="BRANCH", help="A branch of yours to deliver the result into.")]
Shown = Annotated[bool, typer.Option("--preview", help="Only say which sessions would conflict.")]
Undo = Annotated[bool, typer.Option("--undo", help="Take the sessions, or all of the run, out again.")]
Allow = Annotated[
    bool,
    typer.Option("--allow-executable-config", help="Also merge changes to what runs on your machine: hooks, CI, …"),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Deliver without being asked.")]


def command(
    run: Run = None,
    sessions: Sessions = None,
    strategy: How = "review",
    into: Into = None,
    preview: Shown = False,
    undo: Undo = False,
    allow_executable_config: Allow = False,
    yes: Yes = False,
    json: Json = False,
    repo: Repo = HERE,
) -> int:
    """Bring the work of a run together on the branch shoal/RUN, beside your checkout.

    What conflicts is named and never stops the rest; done again, it goes on where it was. Your branches stay as they
    are until you name one with --into. Ends with 4 where something is left for you.
    """
    if preview and (undo or into):
        raise BadInput("--preview changes nothing: leave out --into and --undo")
    if undo and into:
        raise BadInput("--undo finds the branch by itself: leave out --into")
    if into and strategy == "review" and not yes and (json or not sys.stdin.isatty()):
        raise BadInput("--strategy review waits for a person, and there is none here; add --yes, or --strategy auto")
    ask = MergeAsk(strategy=Strategy(strategy), into=into, allow_executable=allow_executable_config)
    work = _Work(run, tuple(sessions or ()), repo, as_json=json, is_asking=into is not None and not yes)
    doing = work.previewed() if preview else work.undone(ask) if undo else work.merged(ask)
    return asyncio.run(doing)


class _Work:
    """One call of the command: where it works, and how it speaks."""

    def __init__(self, run: str | None, words: Sequence[str], repo: Path, *, as_json: bool, is_asking: bool) -> None:
        self._run = run
        self._words = words
        self._repo = repo
        self._as_json = as_json
        self._is_asking = is_asking

    async def merged(self, ask: MergeAsk) -> int:
        async with self._desk() as (desk, sessions):
            asked = MergeAsk(
                sessions=sessions, strategy=ask.strategy, into=ask.into, allow_executable=ask.allow_executable
            )
            if self._is_asking and ask.strategy is Strategy.REVIEW:
                ready = await merge(desk, MergeAsk(sessions=sessions, allow_executable=ask.allow_executable))
                self._say(ready.as_fields(), merge_lines(ready, program(), output.paint()))
                if not _agreed(asked_line(ready, str(ask.into))):
                    return self._code(ready)
            done = await merge(desk, asked)
        self._say(done.as_fields(), merge_lines(done, program(), output.paint()))
        return self._code(done)

    async def previewed(self) -> int:
        async with self._desk() as (desk, sessions):
            seen = await preview(desk, sessions)
        self._say(seen.as_fields(), preview_lines(seen, output.paint()))
        return 0

    async def undone(self, ask: MergeAsk) -> int:
        async with self._desk() as (desk, sessions):
            done = await undo(desk, sessions)
        self._say(done.as_fields(), undo_lines(done, output.paint()))
        return self._code(done)

    @asynccontextmanager
    async def _desk(self) -> AsyncIterator[tuple[Desk, tuple[str, ...]]]:
        place = await found(self._repo)
        chosen, sessions = _chosen(place, self._run, self._words)
        async with ledger.opened(place.paths) as book:
            yield Desk(repository=place.repository, paths=place.paths, ledger=book, report=report(chosen)), sessions

    def _say(self, document: Mapping[str, object], lines: Iterable[str]) -> None:
        output.say(text(document) if self._as_json else "\n".join(lines))

    def _code(self, done: MergeReport) -> int:
        return LEFT_FOR_A_PERSON if done.needs_a_person else 0


def _chosen(place: Place, run: str | None, words: Sequence[str]) -> tuple[RunState, tuple[str, ...]]:
    """Find the run that is meant, and those of its sessions that are."""
    state = place.state()
    chosen = find_run(state, run)
    own = State({chosen.run: chosen})
    return chosen, tuple(find_session(own, word).session for word in words)


def _agreed(question: str) -> bool:
    output.tell(question)
    return sys.stdin.readline().strip().casefold() in ("y", "yes")
