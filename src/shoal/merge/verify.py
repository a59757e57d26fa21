"""Verifying what was merged: a command of the user's, behind the wall, on a commit that no ref holds yet."""

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace

from shoal.adapters.command import CommandAdapter
from shoal.contracts.committed_work import CommittedBench
from shoal.contracts.quoting import escape_text
from shoal.contracts.workbench import Ran
from shoal.errors import FAULTS, BadInput, ShoalError, Unavailable
from shoal.git.refs import pin
from shoal.merge.candidates import INSIDE
from shoal.merge.queue import Verified
from shoal.model.agent import AgentSpec
from shoal.model.contract import Passes
from shoal.model.events import SessionStarted, StepEnded, StepStarted
from shoal.model.limits import ResourceLimits
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import WorkerResult
from shoal.model.setup import SetupRecord
from shoal.model.status import Status
from shoal.patterns.limiter import Limiter
from shoal.sessions.context import RunContext
from shoal.sessions.session import ended_events, mask_result, prompt_summary, runner_for, started_event
from shoal.sessions.setup.prepare import setup_record
from shoal.sessions.worker import WorkerSpec
from shoal.steps.attempts import WorkerRunner
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events

STEP = "merge__verify"
"""No step of a file has this name: theirs have no `_`, and those inside of others one at a time."""
LOG_BYTES = 64 * 1024
WORDS_SIGNS = 300


class Stopped(ShoalError):
    """A verification was stopped before it came to a verdict."""

    def __init__(self) -> None:
        super().__init__("the verification was stopped; nothing was decided by it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """Runs *command* on commits, each in a box of its own that is recorded as a session without work.

    What a kill leaves of it is then found and removed by the next start. Told to *stop*, it raises `Stopped`;
    cancelled, its box is ended at once.
    """

    context: RunContext
    command: Passes
    limits: ResourceLimits | None = None
    network: Network = Network.NONE
    limiter: Limiter | None = None
    worker: WorkerSpec | None = None
    """Whose set-up the checkouts have."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    verdicts: list[bool] = field(default_factory=list)
    """What was said so far."""
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def __call__(self, commit: str) -> Verified:
        """Say whether *commit* is good; the log begins with the reason if it is not, and has the end of the output."""
        context = self.context
        await pin(context.repository, context.run, commit)  # a slot may be long in coming, and a gc quick
        async with self.limiter.slot(run=context.run) if self.limiter else contextlib.nullcontext():
            result = await self._verify_and_record(self._job(), commit)
        if result.status is Status.CANCELLED:
            raise Stopped
        self.verdicts.append(result.status.is_good)
        return Verified(ok=result.status.is_good, log=log(result))

    def _job(self) -> WorkerSpec:
        agent = AgentSpec(name="", adapter="command", command=self.command.argv)
        task = ResolvedTask(
            name=STEP,
            prompt="",
            agent=agent,
            network=self.network,
            limits=self.limits,
            timeout=self.command.timeout,
            title=f"verify: {_words(self.command)}",
        )
        return WorkerSpec(step=STEP, index=next(self._numbers), count=1, task=task, adapter=CommandAdapter())

    async def _verify_and_record(self, job: WorkerSpec, commit: str) -> WorkerResult:
        """Announce a session, verify in its box, and say how it ended, whatever happens."""
        context, began = self.context, time.monotonic()
        result = WorkerResult(index=job.index, session=job.session, status=Status.CANCELLED, base=commit)
        try:
            # Inside: cancelled while it is written, it is on disk all the same, and has to have an end.
            await context.ledger.append(started_event(context, job))
            result = await self._result(job, commit, result)
        except (BadInput, Unavailable) as error:  # it holds for every commit
            result = replace(result, status=Status.FAILED, error=str(error))
            raise
        except FAULTS as error:
            why = f"it could not be verified: {str(error) or type(error).__name__}"
            result = replace(result, status=Status.FAILED, error=why)
        finally:
            took = round(time.monotonic() - began, 3)
            result = mask_result(
                replace(result, duration_seconds=took, prompt=prompt_summary(context, job)), context.mask
            )
            try:
                with contextlib.suppress(ShoalError):  # the verdict counts without its log too
                    await context.ledger.forget(job.session)
            finally:  # whoever is not wanted any more in this very moment has ended all the same
                await context.ledger.append(*ended_events(context, job, result))
        return result

    async def _result(self, job: WorkerSpec, commit: str, result: WorkerResult) -> WorkerResult:
        ran = await self._ran(job, commit)
        result = replace(result, exit_code=ran.exit_code, output=ran.output)
        if self.stop.is_set() and ran.failure is not None:
            return result
        if ran.exit_code == 0 and ran.failure is None:
            return replace(result, status=Status.NO_CHANGES)
        why = ran.failure or f"it exited with {ran.exit_code}"
        return replace(result, status=Status.FAILED, error=f"`{_words(self.command)}` did not pass: {why}")

    async def _ran(self, job: WorkerSpec, commit: str) -> Ran:
        context = self.context
        box = context.paths.box(job.session)
        box.mkdir(mode=0o700)
        try:
            bench = CommittedBench(
                context=context,
                worker=job,
                commit=commit,
                box=box,
                stop=self.stop,
                runner_for=runner_for,
                setup_as=self.worker and replace(self.worker, step=job.step, hex=job.hex),
                word="verify",
            )
            return await bench.run(self.command.argv, self.command.timeout)
        finally:
            context.trash.throw(box)


@contextlib.asynccontextmanager
async def verifying(
    context: RunContext,
    command: Passes,
    *,
    limits: ResourceLimits | None = None,
    network: Network = Network.NONE,
    limiter: Limiter | None = None,
    worker: WorkerSpec | None = None,
    stop: asyncio.Event | None = None,
) -> AsyncIterator[Verifier]:
    """Hold a verifier, whose sessions are recorded as those of one step."""
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
        good = verifier.verdicts
        status = Status.SUCCEEDED if all(good) else Status.DEGRADED if any(good) else Status.FAILED
    finally:
        await context.ledger.append(StepEnded(run=context.run, step=STEP, status=status))


def log(result: WorkerResult) -> str:
    """Give why a verification did not pass, and the end of what was said, bounded as a whole."""
    head = f"{result.error}\n" if result.error else ""
    tail = result.output.encode(errors="replace")[-(LOG_BYTES - len(head.encode(errors="replace"))) :]
    return head + tail.decode(errors="ignore")


def _words(command: Passes) -> str:
    return escape_text(command.words, WORDS_SIGNS)


SETUP_STEP = "merge__setup"


def setup_worker(runner: WorkerRunner) -> WorkerSpec | None:
    """Find the worker whose set-up a verification has: the set-up that most sessions of the run had."""
    context = runner.context
    jobs = [job for job in runner.workers.values() if INSIDE not in job.step]
    known = [(record, job) for job in jobs if (record := setup_record(context, job)) is not None]
    if known:
        usual = _most_common(record for record, _ in known)
        return next(job for record, job in known if record == usual)
    return recorded_worker(context.paths, context.run, context.environ)


def recorded_worker(paths: StatePaths, run: str, environ: Mapping[str, str]) -> WorkerSpec | None:
    """Make a worker with the set-up that most recorded sessions of *run* had; its secrets come from the host."""
    started = (recorded.event for recorded in read_events(paths, run))
    found = [event.setup for event in started if isinstance(event, SessionStarted) and event.setup is not None]
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
    """Give the record that is there most often, and of several such the first."""
    found = list(records)
    counts = Counter(map(repr, found))
    return max(found, key=lambda record: counts[repr(record)])
