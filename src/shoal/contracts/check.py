"""Check a session's work against the contracts of its step."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, cast

from shoal.adapters.client import this_host
from shoal.adapters.registry import adapter_of
from shoal.contracts.committed_work import CommittedBench, Reviewer, RunnerFor
from shoal.contracts.workbench import Workbench
from shoal.errors import FAULTS
from shoal.model.artifact import ProducedArtifact
from shoal.model.contract import TRIAL, CommandContract, Contract, ContractResult, failure
from shoal.model.results import WorkerResult, sum_usage
from shoal.model.select import score_of
from shoal.model.status import Status
from shoal.pipeline.keys.contract_types import load_module
from shoal.sessions.worker import Session, WorkerSpec

MET = "met"


async def check(contracts: Sequence[Contract], bench: Workbench) -> tuple[ContractResult, ...]:
    """Check the work on *bench* against all *contracts* in order, so that a retry learns of every failure."""
    return tuple([await _check(contract, bench) for contract in contracts])


async def _check(contract: Contract, bench: Workbench) -> ContractResult:
    try:
        broken = await _find_fault(contract, bench)
    except FAULTS as error:
        broken = f"it could not be checked: {str(error) or type(error).__name__}"
    return ContractResult(contract.type, broken is None, broken or MET, contract.only_warns)


class CheckedType(Protocol):
    """What the module of a contract type defines for checking."""

    async def check(self, contract: Contract, bench: Workbench) -> str | None:
        """Return how the work fails to meet *contract*, or `None`."""


async def _find_fault(contract: Contract, bench: Workbench) -> str | None:
    return await cast("CheckedType", load_module(contract.type)).check(contract, bench)


async def check_contracts(
    session: Session, result: WorkerResult, produced: Sequence[ProducedArtifact], runner_for: RunnerFor
) -> WorkerResult:
    """Check successful work against the contracts of its step; work that does not meet them has failed."""
    worker = session.worker
    if not result.status.is_good or not (worker.contracts or worker.trial):
        return result
    bench = CommittedBench(
        context=session.context,
        worker=worker,
        commit=result.commit,
        session_dir=session.directory.path,
        stop=session.stop,
        runner_for=runner_for,
        reviewers=_reviewers(worker),
        artifacts={artifact.name: artifact.content for artifact in produced},
    )
    checks = await check(worker.contracts, bench)
    why = failure(checks)
    if worker.trial is not None and why is None:
        checks = (*checks, await _run_trial(worker.trial, bench))
    result = replace(result, usage=sum_usage((result.usage, *bench.spent)))
    if session.stop.is_set():
        return replace(
            result, status=Status.CANCELLED, checks=checks, error="it was stopped while its work was checked"
        )
    if why is None:
        return replace(result, checks=checks)
    return replace(result, status=Status.FAILED, checks=checks, error=why)


def _reviewers(worker: WorkerSpec) -> dict[str, Reviewer]:
    host = this_host()
    return {name: Reviewer(task=task, adapter=adapter_of(task.agent, host)) for name, task in worker.reviewers.items()}


async def _run_trial(trial: CommandContract, bench: Workbench) -> ContractResult:
    """Run a selection's command, which only compares; its last line may be a score."""
    try:
        ran = await bench.run(trial.argv, trial.timeout)
    except FAULTS as error:
        return ContractResult(TRIAL, is_met=False, message=str(error) or type(error).__name__, is_warning=True)
    is_met = ran.exit_code == 0 and ran.failure is None
    score = score_of(ran.output) if is_met else None
    message = (ran.failure or f"it exited with {ran.exit_code}") if score is None else repr(score)
    return ContractResult(TRIAL, is_met=is_met, message=message, is_warning=True)
