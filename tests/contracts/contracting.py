"""Committed work on a bench, as in a session, and contracts checked against it for real."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

from shoal.adapters.command import CommandAdapter
from shoal.contracts.check import check
from shoal.contracts.committed_work import CommittedBench, Reviewer
from shoal.model.agent import AgentSpec
from shoal.model.contract import AgentReview, CommandContract, Contract, ContractResult, JsonSchema, NonEmptyFile
from shoal.model.resolved_task import ResolvedTask
from shoal.runs.context import open_run
from shoal.runs.request import RunRequest
from shoal.sessions.session import runner_for
from shoal.sessions.worker import WorkerSpec
from tests.conftest import git

GOOD = '{"verdict": "pass", "reasons": []}'

BAD = '{"verdict": "fail", "reasons": ["it is too long"]}'


def committed(repo: Path, script: str, subject: str = "work") -> str:
    """Commit what a script does, on no branch that anybody is on, and give the commit."""
    git(repo, "checkout", "-q", "--detach")
    assert os.system(f"cd {repo} && {{ {script}\n}}") == 0
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", subject)
    commit = git(repo, "rev-parse", "HEAD")
    git(repo, "checkout", "-qf", "main")
    git(repo, "branch", "-f", "held", commit)
    return commit


def worker(**task: object) -> WorkerSpec:
    agent = AgentSpec(name="script", adapter="command", command=("true",))
    made = ResolvedTask(name="work", prompt="go", agent=agent, **task)  # type: ignore[arg-type]
    return WorkerSpec(step="work", index=0, count=1, task=made, adapter=CommandAdapter())


def reviewer(script: str) -> dict[str, Reviewer]:
    agent = AgentSpec(name="critic", adapter="command", command=("/bin/sh", "-c", script))
    task = ResolvedTask(name="critic", prompt="", agent=agent, system_prompt="be strict")
    return {"persona critic": Reviewer(task=task, adapter=CommandAdapter())}


@contextlib.asynccontextmanager
async def benched(
    repo: Path,
    commit: str | None,
    *,
    strategy: str = "auto",
    sandbox: str = "bubblewrap",
    job: WorkerSpec | None = None,
    stop: asyncio.Event | None = None,
    base: str | None = None,
    reviews: str = f"echo '{GOOD}'",
    artifacts: dict[str, bytes] | None = None,
) -> AsyncIterator[CommittedBench]:
    """Lay *commit* on a bench, as a session does that has just brought it in."""
    request = RunRequest(folder=repo, environ=os.environ, strategy=strategy, sandbox=sandbox, base=base, grace=0.5)
    job = job or worker()
    async with open_run(request) as opened:
        context = opened.context
        session_dir = context.paths.session_dir(job.session)
        session_dir.mkdir()
        try:
            yield CommittedBench(
                context=context,
                worker=job,
                commit=commit,
                session_dir=session_dir,
                stop=stop or asyncio.Event(),
                runner_for=runner_for,
                reviewers=reviewer(reviews),
                artifacts=artifacts or {},
            )
            assert list(session_dir.iterdir()) == []
        finally:
            context.trash.throw(session_dir)
            with contextlib.suppress(Exception):
                await context.ledger.forget(job.session)


async def asked(repo: Path, commit: str | None, *contracts: Contract, **how: object) -> tuple[ContractResult, ...]:
    async with benched(repo, commit, **how) as bench:  # type: ignore[arg-type]
        return await check(contracts, bench)


async def message(repo: Path, commit: str | None, contract: Contract, **how: object) -> str | None:
    """Why the work does not meet *contract*."""
    (one,) = await asked(repo, commit, contract, **how)
    assert one.type == contract.type
    return None if one.is_met else one.message


def passes(command: str | tuple[str, ...], timeout: float | None = None) -> CommandContract:
    return CommandContract(type="test_suite", command=command, timeout=timeout)


def schema(path: str, **schema: object) -> JsonSchema:
    return JsonSchema(type="json_schema", path=path, schema=json.dumps(schema))


def non_empty(path: str) -> NonEmptyFile:
    return NonEmptyFile(type="non_empty_file", path=path)


def review(criteria: str = "is it short?", **more: object) -> AgentReview:
    return AgentReview(type="agent_review", persona="critic", criteria=criteria, **more)  # type: ignore[arg-type]


def running(mark: str) -> list[str]:
    """Processes whose command has *mark* in it."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = place.read_bytes().split(b"\0")
            found += [place.parent.name] if words[:2] == [b"sleep", mark.encode()] else []
    return found
