"""`shoal merge`: combine the work of a run, and deliver it into a branch of the user."""

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
from shoal.cli.options import HERE, Json, Repo, Run
from shoal.cli.output import escape, program
from shoal.cli.render import messages
from shoal.cli.render.merge import confirm_line, merge_lines, not_delivered_line, preview_lines, undo_lines
from shoal.cli.repository import RepositoryState, find_place
from shoal.errors import BadInput, ExitCode
from shoal.merge.deliver import find_target
from shoal.merge.merge import merge, preview
from shoal.merge.request import ConflictOptions, MergeContext, MergeRequest, Verify
from shoal.merge.undo import undo
from shoal.model.conflict_rule import ConflictRule, verification
from shoal.model.contract import CommandContract
from shoal.model.events import Recorded, SessionStarted
from shoal.model.merge import MergeReport, Strategy
from shoal.model.resolved_task import ResolvedTask
from shoal.pipeline.keys.duration import seconds
from shoal.pipeline.names import own_file
from shoal.store.documents import text
from shoal.store.fold import report
from shoal.store.ledger import open_ledger
from shoal.store.lookup import find_run, find_session
from shoal.store.reader import store_at
from shoal.store.run_state import RunState, State

AT_ONCE = 3


@dataclass(frozen=True, slots=True)
class Help:
    """What a merge uses besides git: a conflict rule, a verification, a resolver."""

    rule: ConflictRule = ConflictRule.REPORT
    verify: CommandContract | None = None
    resolver: str | None = None
    file: Path | None = None
    at_once: int = AT_ONCE

    @property
    def needs_sessions(self) -> bool:
        """Return whether anything has to run in a sandbox."""
        return self.verify is not None or self.rule is ConflictRule.AGENT

    def assert_sense(self) -> None:
        """Refuse options that contradict each other or work only in a file."""
        if self.rule is ConflictRule.REDO:
            where = "set `on_conflict: redo` under `runtime.merge` in the file and run it"
            raise BadInput(f"--on-conflict redo works only during a run; {where}")
        if self.rule is ConflictRule.AGENT and self.resolver is None:
            raise BadInput("--on-conflict agent needs --resolver: a persona or an agent in your file")
        if self.rule is not ConflictRule.AGENT and (self.resolver or self.file):
            raise BadInput("--resolver and --file need --on-conflict agent")
        if self.at_once < 1:
            raise BadInput(f"-j must be at least 1, not {self.at_once}")

    def find_resolver(self, folder: Path, environ: Mapping[str, str]) -> ResolvedTask | None:
        """Find the persona or agent that resolves conflicts."""
        if self.resolver is None:
            return None
        from shoal.pipeline.load import load  # the YAML reader takes as long to import as everything else
        from shoal.pipeline.plan import resolver

        file = self.file or own_file(folder)
        if not file.is_file():
            raise BadInput(
                f"{escape(str(file))} does not exist, so {self.resolver!r:.60} is unknown; name its file with --file"
            )
        return resolver(load(file), self.resolver, environ=environ)


def read_verify(command: str | None, timeout: str | None) -> CommandContract | None:
    """Read the command to verify with, and its timeout."""
    if command is None:
        if timeout is not None:
            raise BadInput("--verify-timeout needs --verify")
        return None
    if not command.strip() or "\0" in command:
        raise BadInput("--verify is empty; give a shell command, like `pytest -q`")
    return verification(command, None if timeout is None else _length(timeout))


def _length(written: str) -> float:
    return seconds(float(written)) if written.replace(".", "", 1).isdigit() else seconds(written)


Sessions = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SESSION", help="Only these sessions, in this order; default: all that succeeded.", show_default=False
    ),
]
How = Annotated[
    Literal["review", "auto", "squash", "rebase", "octopus"],
    typer.Option(
        help="review and auto: a merge commit per session; squash: a commit per session; rebase: each session's own "
        "commits; octopus: one merge commit for all. review asks before it moves your branch."
    ),
]
Into = Annotated[str | None, typer.Option(metavar="BRANCH", help="Your branch to deliver the result into.")]
Shown = Annotated[bool, typer.Option("--preview", help="Only show which sessions would conflict.")]
Undo = Annotated[bool, typer.Option("--undo", help="Take these sessions, or the whole run, out again.")]
Allow = Annotated[
    bool,
    typer.Option("--allow-executable-config", help="Also merge files that can run code on your machine: hooks, CI, …"),
]
AllowSecrets = Annotated[bool, typer.Option("--allow-secrets", help="Also merge work that contains your secrets.")]
VerifyOption = Annotated[
    str | None,
    typer.Option(metavar="COMMAND", help="Must exit with 0 on the combined work; runs in the run's sandbox."),
]
VerifyTimeout = Annotated[
    str | None, typer.Option(metavar="TIME", help="Time limit for each --verify, like 90 or 10m.")
]
OnConflict = Annotated[
    Literal["report", "ours", "theirs", "agent", "redo"],
    typer.Option(
        help="What to do with conflicting work, after the rest is merged: report it; keep the lines of ours (merged "
        "earlier) or theirs (the later session); let an agent resolve it. redo works only in files."
    ),
]
Resolver = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The persona or agent in --file that resolves conflicts, with --on-conflict agent."
    ),
]
File = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The file that defines --resolver; default: shoal.yaml.")
]
AtOnce = Annotated[int, typer.Option("-j", metavar="N", help="Sessions of --verify and --resolver at a time.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Deliver without asking.")]


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
    """Combine the work of a run without touching your checkout.

    The result is the branch shoal/RUN. Sessions that conflict are reported and do not block the rest; run the command
    again to continue. Your branches do not change until you name one with --into. Exits with 4 if something is left
    for you to do.
    """
    help_ = Help(ConflictRule(on_conflict), read_verify(verify, verify_timeout), resolver, file, at_once)
    help_.assert_sense()
    if (preview or undo) and help_ != Help(at_once=at_once):
        raise BadInput("--preview and --undo cannot be combined with --verify, --on-conflict and their options")
    if preview and (undo or into is not None):
        raise BadInput("--preview cannot be combined with --into or --undo")
    if undo and into is not None:
        raise BadInput("--undo finds the branch itself; drop --into")
    if into is not None and strategy == "review" and not yes and (json or not sys.stdin.isatty()):
        raise BadInput(
            "--strategy review asks for confirmation, and nobody can answer here; add --yes or --strategy auto"
        )
    request = MergeRequest(strategy=Strategy(strategy), into=into, is_approved=yes)
    request = replace(request, allow_executable=allow_executable_config, allow_secrets=allow_secrets)
    work = _MergeCommand(run, tuple(sessions or ()), repo, as_json=json, is_asking=into is not None and not yes)
    doing = work.preview() if preview else work.undo() if undo else work.merge(request, help_)
    return asyncio.run(doing)


class _MergeCommand:
    """One call of the command: which run and sessions, and how it prints."""

    def __init__(self, run: str | None, words: Sequence[str], repo: Path, *, as_json: bool, is_asking: bool) -> None:
        self._run = run
        self._words = words
        self._repo = repo
        self._as_json = as_json
        self._is_asking = is_asking

    async def merge(self, request: MergeRequest, help_: Help) -> int:
        if not help_.needs_sessions:
            async with self._open_context() as (merge_context, sessions):
                return await self._merge(
                    merge_context, replace(request, sessions=sessions, resolving=ConflictOptions(rule=help_.rule))
                )
        from shoal.merge.verify import VerificationStopped

        with interruptible() as interrupt:
            try:
                async with self._open_with_sessions(request, help_, interrupt.stop) as (
                    merge_context,
                    prepared,
                ):
                    code = await self._merge(merge_context, prepared)
            except VerificationStopped as stopped:
                output.print_err(str(stopped))
            except asyncio.CancelledError:
                output.print_err(messages.interrupt_line())
                return ExitCode.INTERRUPTED
        return ExitCode.INTERRUPTED if interrupt.stop.is_set() else code

    async def _merge(self, merge_context: MergeContext, request: MergeRequest) -> int:
        request = replace(request, verify=_remember_verdicts(request.verify))
        if self._is_asking and request.strategy is Strategy.REVIEW:
            # Report a wrong name before anything is merged or asked.
            await find_target(merge_context.repository, str(request.into))
            ready = await merge(merge_context, replace(request, into=None))
            is_asking = ready.branch_fault is None
            self._print(ready.as_fields(), merge_lines(ready, program(), output.paint(), is_asking=is_asking))
            if not is_asking:
                return self._code(ready)
            if not _confirm(confirm_line(ready, str(request.into))):
                output.print_err(not_delivered_line(ready, str(request.into), program()))
                return self._code(ready)
            request = replace(request, is_approved=True)
        done = await merge(merge_context, request)
        self._print(done.as_fields(), merge_lines(done, program(), output.paint()))
        return self._code(done)

    async def preview(self) -> int:
        async with self._open_context() as (merge_context, sessions):
            seen = await preview(merge_context, sessions)
        self._print(seen.as_fields(), preview_lines(seen, output.paint()))
        return 0

    async def undo(self) -> int:
        async with self._open_context() as (merge_context, sessions):
            earlier = merge_context.report.merge
            done = await undo(merge_context, sessions)
        before = earlier.left_out if earlier else ()
        self._print(done.as_fields(), undo_lines(done, output.paint(), before=before))
        return self._code(done)

    @asynccontextmanager
    async def _open_context(self) -> AsyncIterator[tuple[MergeContext, tuple[str, ...]]]:
        place = await find_place(self._repo)
        chosen, sessions = _find_run(place, self._run, self._words)
        async with open_ledger(store_at(place.paths)) as book:
            yield (
                MergeContext(repository=place.repository, paths=place.paths, ledger=book, report=report(chosen)),
                sessions,
            )

    @asynccontextmanager
    async def _open_with_sessions(
        self, request: MergeRequest, help_: Help, stop: asyncio.Event
    ) -> AsyncIterator[tuple[MergeContext, MergeRequest]]:
        """Open a context that can start sessions, in the sandbox that the run had."""
        from shoal.runs.auto_merge import open_recorded_run, prepare_merge_request

        place = await find_place(self._repo)
        chosen, sessions = _find_run(place, self._run, self._words)
        resolver = help_.find_resolver(self._repo, os.environ)
        resolving = ConflictOptions(rule=help_.rule, resolver=resolver, stop=stop)
        request = replace(request, sessions=sessions, resolving=resolving)
        async with (
            open_recorded_run(self._repo, os.environ, chosen, help_.at_once, resolver) as runner,
            prepare_merge_request(runner, request, help_.verify) as whole,
        ):
            context = runner.context
            context.ledger.subscribe(_print_session)
            merge_context = MergeContext(
                repository=context.repository, paths=context.paths, ledger=context.ledger, report=report(chosen)
            )
            yield merge_context, whole

    def _print(self, document: Mapping[str, object], lines: Iterable[str]) -> None:
        output.print_out(text(document) if self._as_json else "\n".join(lines))

    def _code(self, done: MergeReport) -> int:
        return ExitCode.NEEDS_A_PERSON if done.needs_a_person else 0


def _print_session(recorded: Recorded) -> None:
    """Print which session has started, because it may take a while."""
    if isinstance(recorded.event, SessionStarted):
        output.print_err(f"{escape(recorded.event.session)}: {escape(recorded.event.prompt)}")


def _find_run(place: RepositoryState, run: str | None, words: Sequence[str]) -> tuple[RunState, tuple[str, ...]]:
    """Find the run, and the chosen sessions of it."""
    state = place.state()
    chosen = find_run(state, run)
    own = State({chosen.run: chosen})
    return chosen, tuple(find_session(own, word).session for word in words)


def _remember_verdicts(verify: Verify | None) -> Verify | None:
    """Verify each commit once, even if a question comes between merge and delivery."""
    if verify is None:
        return None
    verdicts: dict[str, str | None] = {}

    async def verify_once(commit: str) -> str | None:
        if commit not in verdicts:
            verdicts[commit] = await verify(commit)
        return verdicts[commit]

    return verify_once


def _confirm(question: str) -> bool:
    # The event loop would catch the first Ctrl-C, and react only after the line was read.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        output.print_err(question)
        return sys.stdin.readline().strip().casefold() in ("y", "yes")
    finally:
        signal.signal(signal.SIGINT, before)
