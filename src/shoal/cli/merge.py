"""`shoal merge`: bring the work of a run together, and into a branch of yours where you say so."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from shoal.cli import merge as option
from shoal.cli import output
from shoal.cli.follow import interruptible
from shoal.cli.json_output import text
from shoal.cli.options import HERE, Json, Repo, Run
from shoal.cli.output import escape, program
from shoal.cli.render import trouble
from shoal.cli.render.merge import confirm_line, declined_line, merge_lines, preview_lines, undo_lines
from shoal.cli.repository import RepositoryState, find_place
from shoal.errors import BadInput
from shoal.merge.deliver import find_target
from shoal.merge.merge import merge, preview
from shoal.merge.request import MergeContext, MergeRequest, Resolving, Verify
from shoal.merge.undo import undo
from shoal.model.conflict_rule import ConflictRule, verification
from shoal.model.contract import Passes
from shoal.model.events import Recorded, SessionStarted
from shoal.model.merge import MergeReport, Strategy
from shoal.model.resolved_task import ResolvedTask
from shoal.pipeline.keys.duration import seconds
from shoal.pipeline.names import own_file
from shoal.store.fold import report
from shoal.store.ledger import open_ledger
from shoal.store.lookup import find_run, find_session
from shoal.store.reader import store_at
from shoal.store.state import RunState, State

AT_ONCE = 3


@dataclass(frozen=True, slots=True)
class Help:
    """What a merge may use besides git."""

    rule: ConflictRule = ConflictRule.REPORT
    verify: Passes | None = None
    resolver: str | None = None
    file: Path | None = None
    at_once: int = AT_ONCE

    @property
    def needs_sessions(self) -> bool:
        """Say whether anything has to run behind a wall."""
        return self.verify is not None or self.rule is ConflictRule.AGENT

    def assert_sense(self) -> None:
        """Refuse what does not go together, and what only the file of a run can ask for."""
        if self.rule is ConflictRule.REDO:
            where = "write `on_conflict: redo` under `runtime.merge` of the file, and run that"
            raise BadInput(f"--on-conflict redo does a task again, and a run that has ended keeps no plan; {where}")
        if self.rule is ConflictRule.AGENT and self.resolver is None:
            raise BadInput("--on-conflict agent needs --resolver: a persona or an agent of your file")
        if self.rule is not ConflictRule.AGENT and (self.resolver or self.file):
            raise BadInput("--resolver and --file go with --on-conflict agent; add that, or leave them out")
        if self.at_once < 1:
            raise BadInput(f"-j {self.at_once}: at least 1 box has to work at a time")

    def find_resolver(self, folder: Path, environ: Mapping[str, str]) -> ResolvedTask | None:
        """Find who resolves conflicts."""
        if self.resolver is None:
            return None
        from shoal.pipeline.load import load  # reading YAML takes as long to load as all the rest
        from shoal.pipeline.plan import resolver

        file = self.file or own_file(folder)
        if not file.is_file():
            raise BadInput(f"there is no {escape(str(file))} that could say who {self.resolver!r:.60} is; give --file")
        return resolver(load(file), self.resolver, environ=environ)


def verifying(command: str | None, timeout: str | None) -> Passes | None:
    """Read what is to be verified, and for how long."""
    if command is None:
        if timeout is not None:
            raise BadInput("--verify-timeout says how long --verify may take; add that, or leave it out")
        return None
    if not command.strip() or "\0" in command:
        raise BadInput("--verify is empty; give a command for the shell, like `pytest -q`")
    return verification(command, None if timeout is None else _length(timeout))


def _length(written: str) -> float:
    return seconds(float(written)) if written.replace(".", "", 1).isdigit() else seconds(written)


Sessions = Annotated[
    list[str] | None,
    typer.Argument(metavar="SESSION", help="Only these, in this order; else all that ended well.", show_default=False),
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
AllowSecrets = Annotated[
    bool, typer.Option("--allow-secrets", help="Also merge work with secrets of yours in its files or commits.")
]
VerifyOption = Annotated[
    str | None,
    typer.Option(metavar="COMMAND", help="Has to exit with 0 on the combined work, behind the wall of the run."),
]
VerifyTimeout = Annotated[
    str | None, typer.Option(metavar="TIME", help="How long each run of --verify may take, like 90 or 10m.")
]
OnConflict = Annotated[
    Literal["report", "ours", "theirs", "agent", "redo"],
    typer.Option(
        help="What is done with work that conflicts, after the rest: report it; keep the lines of ours (landed before) "
        "or theirs (the later work); have an agent resolve it. redo is for files only: a run keeps no plan."
    ),
]
Resolver = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Who resolves with --on-conflict agent: a persona or an agent of --file."),
]
File = Annotated[Path | None, typer.Option(metavar="FILE", help="The file that has the --resolver; else shoal.yaml.")]
AtOnce = Annotated[int, typer.Option("-j", metavar="N", help="So many boxes for --verify and --resolver at once.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Deliver without being asked.")]


LEFT_FOR_A_PERSON, INTERRUPTED = 4, 130


def command(
    run: Run = None,
    sessions: option.Sessions = None,
    strategy: option.How = "review",
    into: option.Into = None,
    preview: option.Shown = False,
    undo: option.Undo = False,
    allow_executable_config: option.Allow = False,
    allow_secrets: option.AllowSecrets = False,
    verify: option.VerifyOption = None,
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
    request = MergeRequest(strategy=Strategy(strategy), into=into, is_approved=yes)
    request = replace(request, allow_executable=allow_executable_config, allow_secrets=allow_secrets)
    work = _MergeCommand(run, tuple(sessions or ()), repo, as_json=json, is_asking=into is not None and not yes)
    doing = work.preview() if preview else work.undone() if undo else work.merge(request, help_)
    return asyncio.run(doing)


class _MergeCommand:
    """One call of the command: where it works, and how it speaks."""

    def __init__(self, run: str | None, words: Sequence[str], repo: Path, *, as_json: bool, is_asking: bool) -> None:
        self._run = run
        self._words = words
        self._repo = repo
        self._as_json = as_json
        self._is_asking = is_asking

    async def merge(self, request: MergeRequest, help_: Help) -> int:
        if not help_.needs_sessions:
            async with self._desk() as (merge_context, sessions):
                return await self._merge(
                    merge_context, replace(request, sessions=sessions, resolving=Resolving(rule=help_.rule))
                )
        from shoal.merge.verify import Stopped

        with interruptible() as interrupt:
            try:
                async with self._reopened(request, help_, interrupt.stop) as (merge_context, equipped):
                    code = await self._merge(merge_context, equipped)
            except Stopped as stopped:
                output.print_err(str(stopped))
            except asyncio.CancelledError:
                output.print_err(trouble.interrupt_line())
                return INTERRUPTED
        return INTERRUPTED if interrupt.stop.is_set() else code

    async def _merge(self, merge_context: MergeContext, request: MergeRequest) -> int:
        request = replace(request, verify=_remembered(request.verify))
        if self._is_asking and request.strategy is Strategy.REVIEW:
            await find_target(
                merge_context.repository, str(request.into)
            )  # a wrong name is told before anything is made, and before anybody is asked
            ready = await merge(merge_context, replace(request, into=None))
            is_asking = ready.branch_fault is None
            self._say(ready.as_fields(), merge_lines(ready, program(), output.paint(), is_asking=is_asking))
            if not is_asking:
                return self._code(ready)
            if not _confirm(confirm_line(ready, str(request.into))):
                output.print_err(declined_line(ready, str(request.into), program()))
                return self._code(ready)
            request = replace(request, is_approved=True)
        done = await merge(merge_context, request)
        self._say(done.as_fields(), merge_lines(done, program(), output.paint()))
        return self._code(done)

    async def preview(self) -> int:
        async with self._desk() as (merge_context, sessions):
            seen = await preview(merge_context, sessions)
        self._say(seen.as_fields(), preview_lines(seen, output.paint()))
        return 0

    async def undone(self) -> int:
        async with self._desk() as (merge_context, sessions):
            done = await undo(merge_context, sessions)
        self._say(done.as_fields(), undo_lines(done, output.paint()))
        return self._code(done)

    @asynccontextmanager
    async def _desk(self) -> AsyncIterator[tuple[MergeContext, tuple[str, ...]]]:
        place = await find_place(self._repo)
        chosen, sessions = _find_run(place, self._run, self._words)
        async with open_ledger(store_at(place.paths)) as book:
            yield (
                MergeContext(repository=place.repository, paths=place.paths, ledger=book, report=report(chosen)),
                sessions,
            )

    @asynccontextmanager
    async def _reopened(
        self, request: MergeRequest, help_: Help, stop: asyncio.Event
    ) -> AsyncIterator[tuple[MergeContext, MergeRequest]]:
        """Hold a desk with boxes beside it, behind the wall that the run had."""
        from shoal.runs.auto_merge import equipped, reopened

        place = await find_place(self._repo)
        chosen, sessions = _find_run(place, self._run, self._words)
        resolver = help_.find_resolver(self._repo, os.environ)
        resolving = Resolving(rule=help_.rule, resolver=resolver, stop=stop)
        request = replace(request, sessions=sessions, resolving=resolving)
        async with (
            reopened(self._repo, os.environ, chosen, help_.at_once, resolver) as runner,
            equipped(runner, request, help_.verify) as whole,
        ):
            context = runner.context
            context.ledger.subscribe(_heard)
            merge_context = MergeContext(
                repository=context.repository, paths=context.paths, ledger=context.ledger, report=report(chosen)
            )
            yield merge_context, whole

    def _say(self, document: Mapping[str, object], lines: Iterable[str]) -> None:
        output.print_out(text(document) if self._as_json else "\n".join(lines))

    def _code(self, done: MergeReport) -> int:
        return LEFT_FOR_A_PERSON if done.needs_a_person else 0


def _heard(recorded: Recorded) -> None:
    """Say what is under way, which may take its time."""
    if isinstance(recorded.event, SessionStarted):
        output.print_err(f"{escape(recorded.event.session)}: {escape(recorded.event.prompt)}")


def _find_run(place: RepositoryState, run: str | None, words: Sequence[str]) -> tuple[RunState, tuple[str, ...]]:
    """Find the run that is meant, and those of its sessions that are."""
    state = place.state()
    chosen = find_run(state, run)
    own = State({chosen.run: chosen})
    return chosen, tuple(find_session(own, word).session for word in words)


def _remembered(verify: Verify | None) -> Verify | None:
    """Verify a commit once, though a question comes between its merge and its delivery."""
    if verify is None:
        return None
    verdicts: dict[str, str | None] = {}

    async def verified(commit: str) -> str | None:
        if commit not in verdicts:
            verdicts[commit] = await verify(commit)
        return verdicts[commit]

    return verified


def _confirm(question: str) -> bool:
    # The loop would take the first Ctrl-C for itself, and wait with it until the line has come.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        output.print_err(question)
        return sys.stdin.readline().strip().casefold() in ("y", "yes")
    finally:
        signal.signal(signal.SIGINT, before)
