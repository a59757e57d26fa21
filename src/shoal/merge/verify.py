"""Verify merged work: run a command of the user in a sandbox, on a commit that no ref holds yet."""

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace

from shoal.adapters.command import CommandAdapter
from shoal.contracts.committed_work import CommittedBench
from shoal.contracts.workbench import BenchResult, escape_text
from shoal.errors import FAULTS, BadInput, ShoalError, Unavailable
from shoal.git.refs import pin
from shoal.merge.tree_check import Verified
from shoal.model.agent import AgentSpec
from shoal.model.contract import CommandContract
from shoal.model.events import SessionStarted, StepEnded, StepStarted
from shoal.model.limits import ResourceLimits
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import Purpose, WorkerResult
from shoal.model.setup import SetupRecord
from shoal.model.status import Status, share_status
from shoal.patterns.limiter import Limiter
from shoal.sessions.context import RunContext
from shoal.sessions.session import describe_end, describe_start, mask_result, prompt_summary, runner_for
from shoal.sessions.setup.prepare import setup_record
from shoal.sessions.worker import WorkerSpec
from shoal.steps.attempts import WorkerRunner
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events

STEP = "merge__verify"
"""No step of a file has this name: file names have no `_`, and nested ones only single ones."""
LOG_BYTES = 64 * 1024
COMMAND_CHARS = 300


class VerificationStopped(ShoalError):
    """A verification was stopped before its verdict."""

    def __init__(self) -> None:
        super().__init__("the verification was stopped; nothing was decided by it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """Runs *command* on commits, each in its own sandbox that is recorded as a session without work.

    The next start therefore finds and removes what a kill leaves behind. Once *stop* is set, it raises
    `VerificationStopped`. A cancelled one ends its sandbox at once.
    """

    context: RunContext
    command: CommandContract
    limits: ResourceLimits | None = None
    network: Network = Network.NONE
    limiter: Limiter | None = None
    worker: WorkerSpec | None = None
    """The worker whose set-up the checkouts get."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    verdicts: list[bool] = field(default_factory=list)
    """The verdicts so far."""
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def __call__(self, commit: str) -> Verified:
        """Verify *commit*; the log of a failure begins with the reason and has the end of the output."""
        context = self.context
        await pin(context.repository, context.run, commit)  # a slot may take long, and git gc may run meanwhile
        async with self.limiter.slot(run=context.run) if self.limiter else contextlib.nullcontext():
            result = await self._verify_and_record(self._make_worker(), commit)
        if result.status is Status.CANCELLED:
            raise VerificationStopped
        self.verdicts.append(result.status.is_good)
        return Verified(ok=result.status.is_good, log=failure_log(result))

    def _make_worker(self) -> WorkerSpec:
        agent = AgentSpec(name="", adapter="command", command=self.command.argv)
        task = ResolvedTask(
            name=STEP,
            prompt="",
            agent=agent,
            network=self.network,
            limits=self.limits,
            timeout=self.command.timeout,
            title=f"verify: {_command_text(self.command)}",
        )
        return WorkerSpec(
            step=STEP,
            index=next(self._numbers),
            count=1,
            task=task,
            adapter=CommandAdapter(),
            purpose=Purpose.VERIFY,
        )

    async def _verify_and_record(self, worker: WorkerSpec, commit: str) -> WorkerResult:
        """Record a session, verify in its sandbox, and record how it ended, whatever happens."""
        context, began = self.context, time.monotonic()
        result = WorkerResult(index=worker.index, session=worker.session, status=Status.CANCELLED, base=commit)
        try:
            # Inside: if cancelled while it is written, it is on disk all the same, and needs an end.
            await context.ledger.append(describe_start(context, worker))
            result = await self._judge(worker, commit, result)
        except (BadInput, Unavailable) as error:  # it would fail for every commit
            result = replace(result, status=Status.FAILED, error=str(error))
            raise
        except FAULTS as error:
            why = f"it could not be verified: {str(error) or type(error).__name__}"
            result = replace(result, status=Status.FAILED, error=why)
        finally:
            took = round(time.monotonic() - began, 3)
            result = mask_result(
                replace(result, duration_seconds=took, prompt=prompt_summary(context, worker)), context.mask
            )
            ended = describe_end(context, worker, result)
            for event in ended:
                context.ledger.note(event)
            try:
                with contextlib.suppress(ShoalError):  # the verdict counts without its log too
                    await context.ledger.forget(worker.session)
            finally:  # a verification that is cancelled at this moment has ended all the same
                await context.ledger.append(*ended)
        return result

    async def _judge(self, worker: WorkerSpec, commit: str, result: WorkerResult) -> WorkerResult:
        ran = await self._run_command(worker, commit)
        result = replace(result, exit_code=ran.exit_code, output=ran.output)
        if self.stop.is_set() and ran.failure is not None:
            return result
        if ran.exit_code == 0 and ran.failure is None:
            return replace(result, status=Status.NO_CHANGES)
        why = ran.failure or f"it exited with {ran.exit_code}"
        return replace(result, status=Status.FAILED, error=f"`{_command_text(self.command)}` did not pass: {why}")

    async def _run_command(self, worker: WorkerSpec, commit: str) -> BenchResult:
        context = self.context
        directory = context.paths.session_dir(worker.session)
        directory.mkdir(mode=0o700)
        try:
            bench = CommittedBench(
                context=context,
                worker=worker,
                commit=commit,
                session_dir=directory,
                stop=self.stop,
                runner_for=runner_for,
                setup_as=self.worker and replace(self.worker, step=worker.step, hex=worker.hex),
                word="verify",
            )
            return await bench.run(self.command.argv, self.command.timeout)
        finally:
            context.trash.throw(directory)


@contextlib.asynccontextmanager
async def open_verifier(
    context: RunContext,
    command: CommandContract,
    *,
    limits: ResourceLimits | None = None,
    network: Network = Network.NONE,
    limiter: Limiter | None = None,
    worker: WorkerSpec | None = None,
    stop: asyncio.Event | None = None,
) -> AsyncIterator[Verifier]:
    """Open a verifier, whose sessions are recorded as those of one step."""
    verifier = Verifier(
        context=context,
        command=command,
        limits=limits,
        network=network,
        limiter=limiter,
        worker=worker,
        stop=stop or asyncio.Event(),
    )
    await context.ledger.append(StepStarted(run=context.run, step=STEP, workers=1, on_failure="best_effort"))
    status = Status.CANCELLED
    try:
        yield verifier
        status = share_status(sum(verifier.verdicts), len(verifier.verdicts))
    finally:
        await context.ledger.append(StepEnded(run=context.run, step=STEP, status=status))


def failure_log(result: WorkerResult) -> str:
    """Return why a verification failed, and the end of its output, limited in size."""
    head = f"{result.error}\n" if result.error else ""
    tail = result.output.encode(errors="replace")[-(LOG_BYTES - len(head.encode(errors="replace"))) :]
    return head + tail.decode(errors="ignore")


def _command_text(command: CommandContract) -> str:
    return escape_text(command.words, COMMAND_CHARS)


SETUP_STEP = "merge__setup"


def setup_worker(runner: WorkerRunner) -> WorkerSpec | None:
    """Find the worker whose set-up a verification gets: the set-up that most sessions of the run had."""
    context = runner.context
    workers = [worker for worker in runner.workers.values() if worker.purpose is Purpose.WORK]
    known = [(record, worker) for worker in workers if (record := setup_record(context, worker)) is not None]
    if known:
        usual = _most_common(record for record, _ in known)
        return next(worker for record, worker in known if record == usual)
    return find_recorded_worker(context.paths, context.run, context.environ)


def find_recorded_worker(paths: StatePaths, run: str, environ: Mapping[str, str]) -> WorkerSpec | None:
    """Make a worker with the set-up that most recorded sessions of *run* had; its secrets come from the host."""
    recorded = (record.event for record in read_events(paths, run))
    found = [event.setup for event in recorded if isinstance(event, SessionStarted) and event.setup is not None]
    return _worker(_most_common(found), environ) if found else None


def _worker(record: SetupRecord, environ: Mapping[str, str]) -> WorkerSpec:
    secrets = {name: environ[name] for name in record.secrets if name in environ}
    task = ResolvedTask(
        name=SETUP_STEP,
        prompt="",
        agent=AgentSpec(name="", adapter="command", command=("sh",)),
        setup=record.setup,
        network=record.network,
        env={**record.env, **secrets},
        secrets=frozenset(secrets),
    )
    return WorkerSpec(step=SETUP_STEP, index=0, count=1, task=task, adapter=CommandAdapter())


def _most_common(records: Iterable[SetupRecord]) -> SetupRecord:
    """Return the most frequent record; of several, the first."""
    found = list(records)
    counts = Counter(map(repr, found))
    return max(found, key=lambda record: counts[repr(record)])
