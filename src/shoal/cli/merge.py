"""`shoal merge`: bring the work of a run together, and into a branch of yours where you say so."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from shoal.cli import merge_options as option
from shoal.cli import output
from shoal.cli.document import text
from shoal.cli.interrupt import interruptible
from shoal.cli.merge_help import AT_ONCE, Help, verifying
from shoal.cli.options import HERE, Json, Repo, Run
from shoal.cli.place import Place, found
from shoal.cli.plain import plain
from shoal.cli.program import program
from shoal.cli.render import trouble
from shoal.cli.render.merge import asked_line, merge_lines, preview_lines, undo_lines
from shoal.engine.merge.deliver import target
from shoal.engine.merge.desk import Desk, MergeAsk, Resolving
from shoal.engine.merge.merge import merge, preview
from shoal.engine.merge.undo import undo
from shoal.errors import BadInput
from shoal.model.conflict_rule import ConflictRule
from shoal.model.events import Recorded, SessionStarted
from shoal.model.merge import MergeReport, Strategy
from shoal.store import ledger
from shoal.store.find import find_run, find_session
from shoal.store.fold import RunState, State, report

LEFT_FOR_A_PERSON, INTERRUPTED = 4, 130


def command(
    run: Run = None,
    sessions: option.Sessions = None,
    strategy: option.How = "review",
    into: option.Into = None,
    preview: option.Shown = False,
    undo: option.Undo = False,
    allow_executable_config: option.Allow = False,
    verify: option.Verify = None,
    verify_timeout: option.VerifyTimeout = None,
    on_conflict: option.OnConflict = "report",
    resolver: option.Resolver = None,
    file: option.File = None,
    at_once: option.AtOnce = AT_ONCE,
    yes: option.Yes = False,
    json: Json = False,
    repo: Repo = HERE,
) -> int:
    """Bring the work of a run together, beside your checkout.

    It comes to stand on the branch shoal/RUN. What conflicts is named and never stops the rest; done again, it goes on
    where it was. Your branches stay as they are until you name one with --into. Ends with 4 where something is left
    for you.
    """
    help_ = Help(ConflictRule(on_conflict), verifying(verify, verify_timeout), resolver, file, at_once)
    help_.assert_sense()
    if (preview or undo) and help_ != Help(at_once=at_once):
        raise BadInput(
            "--preview and --undo decide nothing new: leave out --verify, --on-conflict and what goes with it"
        )
    if preview and (undo or into is not None):
        raise BadInput("--preview changes nothing: leave out --into and --undo")
    if undo and into is not None:
        raise BadInput("--undo finds the branch by itself: leave out --into")
    if into is not None and strategy == "review" and not yes and (json or not sys.stdin.isatty()):
        raise BadInput("--strategy review waits for a person, and there is none here; add --yes, or --strategy auto")
    ask = MergeAsk(strategy=Strategy(strategy), into=into, allow_executable=allow_executable_config)
    work = _Work(run, tuple(sessions or ()), repo, as_json=json, is_asking=into is not None and not yes)
    doing = work.previewed() if preview else work.undone() if undo else work.merged(ask, help_)
    return asyncio.run(doing)


class _Work:
    """One call of the command: where it works, and how it speaks."""

    def __init__(self, run: str | None, words: Sequence[str], repo: Path, *, as_json: bool, is_asking: bool) -> None:
        self._run = run
        self._words = words
        self._repo = repo
        self._as_json = as_json
        self._is_asking = is_asking

    async def merged(self, ask: MergeAsk, help_: Help) -> int:
        if not help_.needs_boxes:
            async with self._desk() as (desk, sessions):
                return await self._merged(desk, replace(ask, sessions=sessions, resolving=Resolving(rule=help_.rule)))
        from shoal.engine.merge.verify import Stopped

        with interruptible() as interrupt:
            try:
                async with self._reopened(ask, help_, interrupt.stop) as (desk, equipped):
                    code = await self._merged(desk, equipped)
            except Stopped as stopped:
                output.tell(str(stopped))
            except asyncio.CancelledError:
                output.tell(trouble.ended_at_once())
                return INTERRUPTED
        return INTERRUPTED if interrupt.stop.is_set() else code

    async def _merged(self, desk: Desk, ask: MergeAsk) -> int:
        if self._is_asking and ask.strategy is Strategy.REVIEW:
            await target(
                desk, str(ask.into)
            )  # a wrong name is told before anything is made, and before anybody is asked
            ready = await merge(desk, replace(ask, into=None))
            self._say(ready.as_fields(), merge_lines(ready, program(), output.paint()))
            if not _agreed(asked_line(ready, str(ask.into))):
                return self._code(ready)
        done = await merge(desk, ask)
        self._say(done.as_fields(), merge_lines(done, program(), output.paint()))
        return self._code(done)

    async def previewed(self) -> int:
        async with self._desk() as (desk, sessions):
            seen = await preview(desk, sessions)
        self._say(seen.as_fields(), preview_lines(seen, output.paint()))
        return 0

    async def undone(self) -> int:
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

    @asynccontextmanager
    async def _reopened(self, ask: MergeAsk, help_: Help, stop: asyncio.Event) -> AsyncIterator[tuple[Desk, MergeAsk]]:
        """Hold a desk with boxes beside it, behind the wall that the run had."""
        from shoal.engine.merge.bring_back import equipped
        from shoal.engine.merge.reopen import reopened

        place = await found(self._repo)
        chosen, sessions = _chosen(place, self._run, self._words)
        resolver = help_.settled(self._repo, os.environ)
        resolving = Resolving(rule=help_.rule, resolver=resolver, stop=stop)
        ask = replace(ask, sessions=sessions, resolving=resolving)
        async with (
            reopened(self._repo, os.environ, chosen, help_.at_once, resolver) as dispatch,
            equipped(dispatch, ask, help_.verify) as whole,
        ):
            site = dispatch.site
            site.ledger.subscribe(_heard)
            desk = Desk(repository=site.repository, paths=site.paths, ledger=site.ledger, report=report(chosen))
            yield desk, whole

    def _say(self, document: Mapping[str, object], lines: Iterable[str]) -> None:
        output.say(text(document) if self._as_json else "\n".join(lines))

    def _code(self, done: MergeReport) -> int:
        return LEFT_FOR_A_PERSON if done.needs_a_person else 0


def _heard(recorded: Recorded) -> None:
    """Say what is under way, which may take its time."""
    if isinstance(recorded.event, SessionStarted):
        output.tell(f"{plain(recorded.event.session)}: {plain(recorded.event.prompt)}")


def _chosen(place: Place, run: str | None, words: Sequence[str]) -> tuple[RunState, tuple[str, ...]]:
    """Find the run that is meant, and those of its sessions that are."""
    state = place.state()
    chosen = find_run(state, run)
    own = State({chosen.run: chosen})
    return chosen, tuple(find_session(own, word).session for word in words)


def _agreed(question: str) -> bool:
    output.tell(question)
    # The loop would take the first Ctrl-C for itself, and wait with it until the line has come.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return sys.stdin.readline().strip().casefold() in ("y", "yes")
    finally:
        signal.signal(signal.SIGINT, before)
