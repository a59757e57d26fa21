"""Verifying what was merged: a command of the user's, behind the wall, on a commit that no ref holds yet."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from shoal.adapters.command import Command
from shoal.engine.contracts.bench import Ran
from shoal.engine.contracts.committed import CommittedBench
from shoal.engine.contracts.wording import escaped
from shoal.engine.job import Job
from shoal.engine.merge.ahead import Verified
from shoal.engine.pins import pin
from shoal.engine.session import FAULTS, asked, intent, masked, record, way_to_work
from shoal.engine.site import Site
from shoal.errors import BadInput, ShoalError, Unavailable
from shoal.model.agent import AgentSpec
from shoal.model.assignment import Assignment
from shoal.model.contract import Passes
from shoal.model.events import StepEnded, StepStarted
from shoal.model.limits import ResourceLimits
from shoal.model.policy import Network
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.patterns.limiter import Limiter

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

    site: Site
    command: Passes
    limits: ResourceLimits | None = None
    network: Network = Network.NONE
    limiter: Limiter | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    verdicts: list[bool] = field(default_factory=list)
    """What was said so far."""
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def __call__(self, commit: str) -> Verified:
        """Say whether *commit* is good; the log begins with the reason if it is not, and has the end of the output."""
        site = self.site
        await pin(site.repository, site.run, commit)  # a slot may be long in coming, and a gc quick
        async with self.limiter.slot(run=site.run) if self.limiter else contextlib.nullcontext():
            result = await self._recorded(self._job(), commit)
        if result.status is Status.CANCELLED:
            raise Stopped
        self.verdicts.append(result.status.is_good)
        return Verified(ok=result.status.is_good, log=log(result))

    def _job(self) -> Job:
        agent = AgentSpec(name="", adapter="command", command=self.command.argv)
        task = Assignment(
            name=STEP,
            prompt="",
            agent=agent,
            network=self.network,
            limits=self.limits,
            timeout=self.command.timeout,
            title=f"verify: {_words(self.command)}",
        )
        return Job(step=STEP, index=next(self._numbers), count=1, task=task, adapter=Command())

    async def _recorded(self, job: Job, commit: str) -> WorkerResult:
        """Announce a session, verify in its box, and say how it ended, whatever happens."""
        site, began = self.site, time.monotonic()
        path = site.paths.workspace(site.run, job.step, job.index)
        result = WorkerResult(index=job.index, session=job.session, status=Status.CANCELLED, base=commit)
        try:
            # Inside: cancelled while it is written, it is on disk all the same, and has to have an end.
            await site.ledger.append(intent(site, job, path))
            result = await self._result(job, commit, result)
        except (BadInput, Unavailable) as error:  # it holds for every commit
            result = replace(result, status=Status.FAILED, error=str(error))
            raise
        except FAULTS as error:
            why = f"it could not be verified: {str(error) or type(error).__name__}"
            result = replace(result, status=Status.FAILED, error=why)
        finally:
            took = round(time.monotonic() - began, 3)
            result = masked(replace(result, duration_seconds=took, prompt=asked(site, job)), site.mask)
            try:
                with contextlib.suppress(ShoalError):  # the verdict counts without its log too
                    await site.ledger.forget(job.session)
            finally:  # whoever is not wanted any more in this very moment has ended all the same
                await site.ledger.append(*record(site, job, result))
        return result

    async def _result(self, job: Job, commit: str, result: WorkerResult) -> WorkerResult:
        ran = await self._ran(job, commit)
        result = replace(result, exit_code=ran.exit_code, output=ran.output)
        if self.stop.is_set() and ran.failure is not None:
            return result
        if ran.exit_code == 0 and ran.failure is None:
            return replace(result, status=Status.NO_CHANGES)
        why = ran.failure or f"it exited with {ran.exit_code}"
        return replace(result, status=Status.FAILED, error=f"`{_words(self.command)}` did not pass: {why}")

    async def _ran(self, job: Job, commit: str) -> Ran:
        site = self.site
        box = site.paths.box(job.session)
        box.mkdir(mode=0o700)
        try:
            bench = CommittedBench(
                site=site, job=job, commit=commit, box=box, stop=self.stop, way=way_to_work, word="verify"
            )
            return await bench.run(self.command.argv, self.command.timeout)
        finally:
            site.trash.throw(box)


@contextlib.asynccontextmanager
async def verifying(
    site: Site,
    command: Passes,
    *,
    limits: ResourceLimits | None = None,
    network: Network = Network.NONE,
    limiter: Limiter | None = None,
    stop: asyncio.Event | None = None,
) -> AsyncIterator[Verifier]:
    """Hold a verifier, whose sessions are recorded as those of one step."""
    verifier = Verifier(
        site=site,
        command=command,
        limits=limits,
        network=network,
        limiter=limiter,
        stop=stop or asyncio.Event(),
    )
    await site.ledger.append(StepStarted(run=site.run, step=STEP, workers=1, on_failure="best_effort"))
    status = Status.CANCELLED
    try:
        yield verifier
        good = verifier.verdicts
        status = Status.SUCCEEDED if all(good) else Status.DEGRADED if any(good) else Status.FAILED
    finally:
        await site.ledger.append(StepEnded(run=site.run, step=STEP, status=status))


def log(result: WorkerResult) -> str:
    """Give why a verification did not pass, and the end of what was said, bounded as a whole."""
    head = f"{result.error}\n" if result.error else ""
    tail = result.output.encode(errors="replace")[-(LOG_BYTES - len(head.encode(errors="replace"))) :]
    return head + tail.decode(errors="ignore")


def _words(command: Passes) -> str:
    return escaped(command.words, WORDS_SIGNS)
