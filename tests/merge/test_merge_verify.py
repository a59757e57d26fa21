"""Verification of merged work: a real command in a real sandbox, on a commit that no ref holds."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import Unavailable
from shoal.git.merge import Merged, merge_commits
from shoal.merge.candidates import Candidate
from shoal.merge.commits import Chain
from shoal.merge.queue import run_queue
from shoal.merge.verify import LOG_BYTES, STEP, VerificationStopped, Verifier, open_verifier
from shoal.model.contract import CommandContract
from shoal.model.events import AgentEnded, Recorded, SessionEnded, SessionStarted
from shoal.model.limits import ResourceLimits
from shoal.model.masking import Mask
from shoal.model.merge import Strategy
from shoal.model.status import Status
from shoal.patterns.limiter import Limiter
from shoal.runs.context import open_run
from shoal.runs.request import RunRequest
from shoal.sessions.context import RunContext
from shoal.store.fold import fold
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from shoal.store.run_state import StepState
from tests.acting import assert_nothing_left, fingerprint
from tests.conftest import git


def side(repo: Path, name: str, text: str) -> str:
    """A commit beside `main`, held by a branch as an agent's work is."""
    git(repo, "checkout", "-q", "--detach", "main")
    (repo / name).write_text(text)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", name)
    commit = git(repo, "rev-parse", "HEAD")
    git(repo, "branch", "-q", f"agent/{name}/{commit[:6]}")
    git(repo, "checkout", "-q", "main")
    return commit


def passes(command: str, timeout: float | None = None) -> CommandContract:
    return CommandContract(type="verify", command=command, timeout=timeout)


@contextlib.asynccontextmanager
async def ground(repo: Path, strategy: str = "auto") -> AsyncIterator[RunContext]:
    async with open_run(RunRequest(folder=repo, environ=os.environ, strategy=strategy, grace=0.5)) as opened:
        yield opened.context


@contextlib.asynccontextmanager
async def verifier(repo: Path, command: str, **how: object) -> AsyncIterator[Verifier]:
    async with ground(repo) as context, open_verifier(context, passes(command), **how) as one:  # type: ignore[arg-type]
        yield one


async def both(context: RunContext, *commits: str) -> str:
    """A merge that no ref holds."""
    tip = commits[0]
    for one in commits[1:]:
        found = await merge_commits(context.repository, tip, one, "both\n")
        assert isinstance(found, Merged)
        tip = found.commit
    return tip


def recorded(repo: Path) -> StepState:
    (run,) = fold(read_events(StatePaths.of(repo))).runs.values()
    return run.steps[STEP]


@pytest.mark.parametrize("strategy", ["overlay", "worktree"])
async def test_the_command_sees_the_combined_tree_and_leaves_nothing(repo: Path, strategy: str) -> None:
    one, two = side(repo, "a", "1\n"), side(repo, "b", "2\n")
    before, branches = fingerprint(repo), git(repo, "for-each-ref", "refs/heads")
    script = (
        "cat a b README.md && test $(git log --format=%P -1 | wc -w) = 2 && touch x && git add x && git commit -qm x"
    )

    async with ground(repo, strategy) as context, open_verifier(context, passes(script)) as verify:
        good, bad = await verify(await both(context, one, two)), await verify(one)

    assert good.ok
    assert good.log.splitlines() == ["1", "2", "scratch"]
    assert not bad.ok
    assert bad.log.startswith(f"`{script}` did not pass: it exited with ")
    assert "cat: b: No such file" in bad.log
    assert [one.status for one in recorded(repo).sessions.values()] == [Status.NO_CHANGES, Status.FAILED]
    assert recorded(repo).status is Status.DEGRADED
    assert git(repo, "for-each-ref", "refs/heads") == branches
    assert fingerprint(repo) == before
    assert_nothing_left(repo)


async def test_two_that_fail_only_together_are_found_and_the_second_is_put_aside(repo: Path) -> None:
    """The queue over real merges: each is good alone, and the others go on."""
    work = {name: side(repo, name, f"{name}\n") for name in ("a", "b", "c", "d")}
    base = git(repo, "rev-parse", "main")

    async with ground(repo) as context:

        async def add(chain: Chain, candidate: Candidate) -> Chain:
            merged = await merge_commits(context.repository, chain.tip, candidate.source, f"{candidate.session}\n")
            assert isinstance(merged, Merged)
            tree = git(repo, "rev-parse", f"{merged.commit}^{{tree}}")
            return replace(chain, tip=merged.commit, tree=tree)

        async with open_verifier(context, passes("! { echo both; test -e a && test -e c; }")) as verify:
            start = Chain(
                run="run", form=Strategy.AUTO, start=base, origin=base, tip=base, history_commit=base, tree="start"
            )
            candidates = [Candidate(session=name, source=commit) for name, commit in work.items()]
            done = await run_queue(start, candidates, add, lambda chain: verify(chain.tip), width=2)

    (refusal,) = done.refusals
    assert refusal.candidate.session == "c"
    assert refusal.log.endswith("did not pass: it exited with 1\nboth\n")
    assert git(repo, "ls-tree", "--name-only", done.chain.tip, "a", "b", "c", "d").split() == ["a", "b", "d"]
    assert_nothing_left(repo)


async def test_it_has_no_network_and_keeps_to_its_time_and_limits(repo: Path) -> None:
    commit = side(repo, "a", "1\n")
    async with verifier(repo, "tail -n +3 /proc/net/dev | cut -d: -f1; sleep 60") as verify:
        slow = await replace(verify, command=replace(verify.command, timeout=0.5))(commit)
        greedy = replace(
            verify, limits=ResourceLimits(disk_mb=1), command=passes("head -c 9000000 /dev/zero > z; sleep 60")
        )
        large = await greedy(commit)

    assert slow.log.splitlines()[0].endswith("did not pass: it was still running after 0.5 s")
    assert [line.strip() for line in slow.log.splitlines()[1:]] == ["lo"]
    assert large.log.splitlines()[0].endswith("did not pass: it exceeded its disk limit")
    assert_nothing_left(repo)


async def test_the_log_is_its_end_without_secrets(repo: Path) -> None:
    commit = side(repo, "a", "1\n")
    script = "yes 0123456789abcdef | head -n 20000; echo tail hunter2hunter2 ünd Schluß; exit 1"

    async with ground(repo) as context:
        known = replace(context, mask=Mask.of({"TOKEN": "hunter2hunter2"}))
        async with open_verifier(known, passes(script)) as verify:
            said = await verify(commit)

    assert len(said.log.encode()) <= LOG_BYTES
    assert len(said.log) > LOG_BYTES / 2
    assert "did not pass" in said.log.splitlines()[0]
    assert said.log.splitlines()[-1].startswith("tail ")
    assert said.log.endswith(" ünd Schluß\n")
    assert "hunter2" not in said.log
    assert b"hunter2hunter2" not in StatePaths.of(repo).ledger.read_bytes()


async def test_stopped_it_decides_nothing(repo: Path) -> None:
    commit, stop = side(repo, "a", "1\n"), asyncio.Event()

    async with verifier(repo, "echo up; sleep 60", stop=stop) as verify:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_stopped(verify, commit))
            await heard(verify.context, "up")
            stop.set()
        assert task.result()

    (session,) = recorded(repo).sessions.values()
    assert session.status is Status.CANCELLED
    assert_nothing_left(repo)


async def test_cancelled_it_leaves_nothing_running(repo: Path) -> None:
    commit = side(repo, "a", "1\n")

    async with verifier(repo, "echo up; sleep 61.25") as verify:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(verify(commit))
            await heard(verify.context, "up")
            task.cancel()
        assert task.cancelled()
        assert not is_running("61.25")

    (session,) = recorded(repo).sessions.values()
    assert session.status is Status.CANCELLED
    assert_nothing_left(repo)


async def test_cancelled_in_the_moment_of_its_end_it_has_ended(repo: Path) -> None:
    commit = side(repo, "a", "1\n")

    async with verifier(repo, "true") as verify, asyncio.TaskGroup() as group:
        task = group.create_task(verify(commit))

        def told(recorded: Recorded) -> None:
            if isinstance(recorded.event, AgentEnded):  # heard when its log is laid to rest
                task.cancel()

        verify.context.ledger.subscribe(told)

    (session,) = recorded(repo).sessions.values()
    assert session.status.is_ended
    assert_nothing_left(repo)


async def test_what_a_kill_leaves_is_removed_by_the_next_start(repo: Path) -> None:
    """Half a verification lies there: announced, with a box and a mount in it, and no end in the ledger."""
    commit = side(repo, "a", "1\n")
    child = os.fork()
    if child == 0:  # the killed one
        with contextlib.suppress(BaseException):
            asyncio.run(_killed(repo, commit))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    assert list((repo / ".shoal/boxes").iterdir())

    async with open_run(RunRequest(folder=repo, environ=os.environ, grace=0.5)) as opened:
        (lost,) = opened.recovery.brought_in

    assert lost.status is Status.INTERRUPTED
    assert lost.raw is None
    assert_nothing_left(repo)


async def test_verifications_wait_for_their_turn_at_the_limiter(repo: Path) -> None:
    one, two = side(repo, "a", "1\n"), side(repo, "b", "2\n")
    limiter = Limiter(1)
    running: set[str] = set()
    most: list[int] = []

    def hear(told: Recorded) -> None:
        match told.event:
            case SessionStarted(session=session):
                running.add(session)
            case SessionEnded(session=session):
                running.discard(session)
        most.append(len(running))

    async with verifier(repo, "echo up", limiter=limiter) as verify:
        verify.context.ledger.subscribe(hear)
        async with asyncio.TaskGroup() as group:
            group.create_task(verify(one))
            group.create_task(verify(two))

    assert max(most) == 1
    assert verify.verdicts == [True, True]


async def test_a_command_that_is_not_there_is_the_users_trouble_and_not_the_works(repo: Path) -> None:
    commit = side(repo, "a", "1\n")
    async with ground(repo) as context:
        missing = CommandContract(type="verify", command=("no-such-program",))
        async with open_verifier(context, missing) as verify:
            with pytest.raises(Unavailable, match="no-such-program"):
                await verify(commit)
    assert_nothing_left(repo)


async def _stopped(verify: Verifier, commit: str) -> bool:
    with pytest.raises(VerificationStopped):
        await verify(commit)
    return True


async def _killed(repo: Path, commit: str) -> None:
    async with verifier(repo, "echo up; sleep 60") as verify, asyncio.TaskGroup() as group:
        group.create_task(verify(commit))
        await heard(verify.context, "up")
        os.kill(os.getpid(), 9)


async def heard(context: RunContext, word: str) -> None:
    """Wait until some session has said *word*."""
    said = asyncio.Event()
    context.ledger.subscribe(lambda one: said.set() if word in getattr(one.event, "text", "").splitlines() else None)
    async with asyncio.timeout(30):
        await said.wait()


def is_running(word: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word in path.read_bytes().decode(errors="replace").split("\0"):
                return True
    return False
