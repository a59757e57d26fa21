"""The work of a session held to the contracts of its step, before anybody hears that it is good."""

from collections.abc import Sequence
from dataclasses import replace

from shoal.adapters.client import this_host
from shoal.adapters.registry import adapter_of
from shoal.contracts.committed_files import fitting
from shoal.contracts.committed_work import CommittedBench, Reviewer, RunnerFor
from shoal.contracts.json_schema import Fault, unfit
from shoal.contracts.quoting import escape_text, list_paths, quote_output
from shoal.contracts.review import review
from shoal.contracts.test_deletions import lost_tests
from shoal.contracts.workbench import Workbench
from shoal.errors import FAULTS, BadInput
from shoal.model.artifact import Produced, document, refusal
from shoal.model.contract import (
    TRIAL,
    AgentReview,
    Checked,
    Contract,
    JsonSchema,
    NonEmptyFile,
    NoTestDeletions,
    Passes,
    SourceDiff,
    failure,
)
from shoal.model.results import WorkerResult, sum_usage
from shoal.model.select import score_of
from shoal.model.status import Status
from shoal.sessions.worker import Session, WorkerSpec

JSON_BYTES = 4 * 2**20
BLANK_BYTES = 2**20
ERROR_SIGNS = 300
MET = "met"


async def check(contracts: Sequence[Contract], bench: Workbench) -> tuple[Checked, ...]:
    """Hold the work on *bench* to all *contracts*, in their order; who tries again is told everything at once."""
    return tuple([await _check(contract, bench) for contract in contracts])


async def _check(contract: Contract, bench: Workbench) -> Checked:
    try:
        broken = await _broken(contract, bench)
    except FAULTS as error:
        broken = f"it could not be checked: {str(error) or type(error).__name__}"
    return Checked(contract.type, broken is None, broken or MET, contract.only_warns)


async def _broken(contract: Contract, bench: Workbench) -> str | None:
    """Say in what the work does not meet *contract*, or `None`."""
    match contract:
        case JsonSchema():
            return await _unfit(contract, bench)
        case Passes():
            return await _check_command(contract, bench)
        case NonEmptyFile():
            return await _empty(contract, bench)
        case SourceDiff():
            return await _check_changes(contract, bench)
        case NoTestDeletions(patterns=patterns):
            return await lost_tests(bench, patterns)
        case AgentReview():
            return await review(bench, contract)
        case _:
            raise TypeError(f"{type(contract).__name__} is no contract that can be checked")


async def _unfit(contract: JsonSchema, bench: Workbench) -> str | None:
    if contract.path is not None:
        what, content = _show_file(bench, contract.path), await _read(bench, contract.path, JSON_BYTES + 1)
    else:
        what = f"the artifact {contract.artifact}"
        content = await bench.artifact(contract.artifact or "", JSON_BYTES + 1)
    if content is None:
        return f"{what} is not there, or is no plain file"
    if len(content) > JSON_BYTES:
        return f"{what} is larger than {JSON_BYTES // 2**20} MiB"
    try:
        value = document(content)
    except ValueError as error:
        return f"{what} is no JSON: {escape_text(bench.mask(str(error)), ERROR_SIGNS)}"
    wrong = await unfit(contract.schema, content, value)
    if wrong is None:
        return None
    found = "; ".join(_fault(bench, one) for one in wrong.faults)
    return f"{what} does not fit the schema: {found or 'there is too much in it to say where'}"


def _fault(bench: Workbench, fault: Fault) -> str:
    where = bench.mask(fault.path)
    said = escape_text(bench.mask(fault.message), ERROR_SIGNS)
    return f"{escape_text(where, ERROR_SIGNS)}: {said}" if where else said


async def _check_command(contract: Passes, bench: Workbench) -> str | None:
    ran = await bench.run(contract.argv, contract.timeout)
    if ran.exit_code == 0 and ran.failure is None:
        return None
    why = ran.failure or f"it exited with {ran.exit_code}"
    return f"`{escape_text(bench.mask(contract.words), ERROR_SIGNS)}` did not pass: {why}{quote_output(ran.output)}"


async def _empty(contract: NonEmptyFile, bench: Workbench) -> str | None:
    content = await _read(bench, contract.path, BLANK_BYTES)
    if content is None:
        return f"{_show_file(bench, contract.path)} is not there, or is no plain file"
    return None if content.strip() else f"{_show_file(bench, contract.path)} is empty, or blank"


async def _check_changes(contract: SourceDiff, bench: Workbench) -> str | None:
    changed = [one.path for one in await bench.changes()]
    meant = await fitting(changed, contract.paths)
    counted = meant - await fitting(meant, contract.exclude)
    if len(counted) >= contract.min_files:
        return None
    beside = [path for path in changed if path not in counted]
    also = f"; changed besides: {list_paths(beside, bench.mask)}" if beside else ""
    wanted = f"of {', '.join(contract.paths)}" + (f" without {', '.join(contract.exclude)}" if contract.exclude else "")
    return f"{len(counted)} files {wanted} are changed, and at least {contract.min_files} are asked for{also}"


async def _read(bench: Workbench, path: str, limit: int) -> bytes | None:
    """Read a file of the work; a path that was filled in with something may have become none."""
    if why := refusal(path):
        raise BadInput(f"{_show_file(bench, path)}: {why}")
    return await bench.read(path, limit)


def _show_file(bench: Workbench, path: str) -> str:
    return f"`{escape_text(bench.mask(path), ERROR_SIGNS)}`"


async def check_contracts(
    session: Session, result: WorkerResult, produced: Sequence[Produced], runner_for: RunnerFor
) -> WorkerResult:
    """Check good work against the contracts of its step; work that does not meet them has failed, and says why."""
    worker = session.worker
    if not result.status.is_good or not (worker.contracts or worker.trial):
        return result
    bench = CommittedBench(
        context=session.context,
        worker=worker,
        commit=result.commit,
        box=session.directory.box,
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
        return replace(result, status=Status.CANCELLED, checks=checks, error="it was stopped while it was checked")
    if why is None:
        return replace(result, checks=checks)
    return replace(result, status=Status.FAILED, checks=checks, error=why)


def _reviewers(worker: WorkerSpec) -> dict[str, Reviewer]:
    host = this_host()
    return {name: Reviewer(task=task, adapter=adapter_of(task.agent, host)) for name, task in worker.reviewers.items()}


async def _run_trial(trial: Passes, bench: Workbench) -> Checked:
    """Run a selection's command: it only compares, and its last line may be a score."""
    try:
        ran = await bench.run(trial.argv, trial.timeout)
    except FAULTS as error:
        return Checked(TRIAL, is_met=False, message=str(error) or type(error).__name__, is_warning=True)
    is_met = ran.exit_code == 0 and ran.failure is None
    score = score_of(ran.output) if is_met else None
    said = (ran.failure or f"it exited with {ran.exit_code}") if score is None else repr(score)
    return Checked(TRIAL, is_met=is_met, message=said, is_warning=True)
