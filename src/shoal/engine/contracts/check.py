"""Holding work to its contracts: each is asked on its own, and whatever cannot be asked is not met."""

from collections.abc import Sequence

from shoal.engine.contracts.bench import Bench
from shoal.engine.contracts.deletions import lost_tests
from shoal.engine.contracts.fitting import Fault, unfit
from shoal.engine.contracts.globs import fitting
from shoal.engine.contracts.review import reviewed
from shoal.engine.contracts.wording import escaped, named, quoted
from shoal.errors import ShoalError
from shoal.model.artifact import document, refusal
from shoal.model.contract import (
    AgentReview,
    Checked,
    Contract,
    JsonSchema,
    NonEmptyFile,
    NoTestDeletions,
    Passes,
    SourceDiff,
)

JSON_BYTES = 4 * 2**20
BLANK_BYTES = 2**20
ERROR_SIGNS = 300
MET = "met"


async def check(contracts: Sequence[Contract], bench: Bench) -> tuple[Checked, ...]:
    """Hold the work on *bench* to all *contracts*, in their order; who tries again is told everything at once."""
    return tuple([await _checked(contract, bench) for contract in contracts])


async def _checked(contract: Contract, bench: Bench) -> Checked:
    try:
        broken = await _broken(contract, bench)
    except (ShoalError, OSError, TimeoutError, ValueError) as error:
        broken = f"it could not be checked: {str(error) or type(error).__name__}"
    return Checked(contract.type, broken is None, broken or MET, contract.only_warns)


async def _broken(contract: Contract, bench: Bench) -> str | None:
    """Say in what the work does not meet *contract*, or `None`."""
    match contract:
        case JsonSchema():
            return await _unfit(contract, bench)
        case Passes():
            return await _unpassed(contract, bench)
        case NonEmptyFile():
            return await _empty(contract, bench)
        case SourceDiff():
            return await _unchanged(contract, bench)
        case NoTestDeletions(patterns=patterns):
            return await lost_tests(bench, patterns)
        case AgentReview():
            return await reviewed(bench, contract)
        case _:
            raise TypeError(f"{type(contract).__name__} is no contract that can be checked")


async def _unfit(contract: JsonSchema, bench: Bench) -> str | None:
    if contract.path is not None:
        what, content = _shown(bench, contract.path), await _read(bench, contract.path, JSON_BYTES + 1)
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
        return f"{what} is no JSON: {escaped(bench.masked(str(error)), ERROR_SIGNS)}"
    wrong = await unfit(contract.schema, content, value)
    if wrong is None:
        return None
    found = "; ".join(_fault(bench, one) for one in wrong.faults)
    return f"{what} does not fit the schema: {found or 'there is too much in it to say where'}"


def _fault(bench: Bench, fault: Fault) -> str:
    where = bench.masked(fault.path)
    said = escaped(bench.masked(fault.message), ERROR_SIGNS)
    return f"{escaped(where, ERROR_SIGNS)}: {said}" if where else said


async def _unpassed(contract: Passes, bench: Bench) -> str | None:
    ran = await bench.run(contract.argv, contract.timeout)
    if ran.exit_code == 0 and ran.failure is None:
        return None
    why = ran.failure or f"it exited with {ran.exit_code}"
    return f"`{escaped(bench.masked(contract.words), ERROR_SIGNS)}` did not pass: {why}{quoted(ran.output)}"


async def _empty(contract: NonEmptyFile, bench: Bench) -> str | None:
    content = await _read(bench, contract.path, BLANK_BYTES)
    if content is None:
        return f"{_shown(bench, contract.path)} is not there, or is no plain file"
    return None if content.strip() else f"{_shown(bench, contract.path)} is empty, or blank"


async def _unchanged(contract: SourceDiff, bench: Bench) -> str | None:
    changed = [one.path for one in await bench.changes()]
    meant = await fitting(changed, contract.paths)
    counted = meant - await fitting(meant, contract.exclude)
    if len(counted) >= contract.min_files:
        return None
    beside = [path for path in changed if path not in counted]
    also = f"; changed besides: {named(beside, bench.masked)}" if beside else ""
    wanted = f"of {', '.join(contract.paths)}" + (f" without {', '.join(contract.exclude)}" if contract.exclude else "")
    return f"{len(counted)} files {wanted} are changed, and at least {contract.min_files} are asked for{also}"


async def _read(bench: Bench, path: str, limit: int) -> bytes | None:
    """Read a file of the work; a path that was filled in with something may have become none."""
    if why := refusal(path):
        raise ValueError(f"{_shown(bench, path)}: {why}")
    return await bench.read(path, limit)


def _shown(bench: Bench, path: str) -> str:
    return f"`{escaped(bench.masked(path), ERROR_SIGNS)}`"
