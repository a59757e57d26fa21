"""Nodes and coordinators that are lost: time is lost with them, and never work that was reported, nor a double effect."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from shoal.executors.kind import SessionLost
from shoal.model.events import Output, Recorded, SessionEnded, SessionStarted
from shoal.model.nodes import NodeChanged, NodeState, WorkFetched, parse_nodes
from shoal.model.plan import Plan
from shoal.model.results import RunReport
from shoal.model.status import Status
from shoal.runs.request import RunRequest
from shoal.runs.run import run
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from tests.acting import shown, step
from tests.conftest import git
from tests.executors.test_executors import opened, worker

SECONDS = 90


def node_processes(parent: int) -> list[int]:
    """Find the nodes that a process started."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            above = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:  # it has ended
            continue
        if words[-3:-1] == [b"node", b"--stdio"] and int(above) == parent:
            found.append(int(name))
    return sorted(found)


def once(condition: Callable[[Recorded], bool], act: Callable[[], None]) -> Callable[[Recorded], None]:
    """Act at the first event for which the condition holds."""
    has_acted = False

    def listen(recorded: Recorded) -> None:
        nonlocal has_acted
        if not has_acted and condition(recorded):
            has_acted = True
            act()

    return listen


async def run_on(repo: Path, nodes: str, script: str, workers: int, listen: Callable[[Recorded], None]) -> RunReport:
    request = RunRequest(folder=repo, environ=os.environ, grace=0.5, checkpoint_seconds=None)
    plan = Plan(name="t", steps=(step("work", script, workers),), nodes=parse_nodes(nodes))
    async with asyncio.timeout(SECONDS):
        return await run(plan, request, stop=asyncio.Event(), listen=listen)


def events(repo: Path) -> list[object]:
    return [recorded.event for recorded in read_events(StatePaths.of(repo))]


async def test_a_killed_node_costs_time_and_no_work(repo: Path) -> None:
    before = git(repo, "rev-parse", "main")

    def kill() -> None:
        os.kill(node_processes(os.getpid())[0], signal.SIGKILL)

    def is_working(recorded: Recorded) -> bool:
        return isinstance(recorded.event, Output) and "begun" in recorded.event.text

    script = "echo begun; sleep 1; echo $SHOAL_WORKER_INDEX > n-$SHOAL_WORKER_INDEX.txt"
    report = await run_on(repo, "pipe:2,pipe:2", script, 6, once(is_working, kill))

    assert report.status is Status.SUCCEEDED
    assert [shown(repo, result, f"n-{result.index}.txt") for result in report.workers] == list("012345")
    assert [result.attempts for result in report.workers] == [1] * 6
    states = Counter(event.state for event in events(repo) if isinstance(event, NodeChanged))
    assert states[NodeState.JOINED] >= 2
    assert states[NodeState.LOST] >= 1
    ended = [event.result.status for event in events(repo) if isinstance(event, SessionEnded)]
    assert Status.INTERRUPTED in ended
    assert git(repo, "rev-parse", "main") == before
    assert len(git(repo, "for-each-ref", "refs/heads/agent").splitlines()) == 6
    git(repo, "fsck", "--full", "--strict")
    assert node_processes(os.getpid()) == []


async def test_a_lost_session_is_recorded_as_interrupted_and_its_node_is_named(repo: Path) -> None:
    lost: SessionLost | None = None
    async with asyncio.timeout(SECONDS), opened(repo, parse_nodes("pipe:1")) as running:
        is_begun = once(
            lambda recorded: isinstance(recorded.event, Output),
            lambda: os.kill(node_processes(os.getpid())[0], signal.SIGKILL),
        )
        running.context.ledger.subscribe(is_begun)
        try:
            await running.executor.run(running.context, worker("echo x > x; echo begun; sleep 600"), lambda _: None)
        except SessionLost as error:
            lost = error

    assert lost is not None
    (ended,) = [event for event in events(repo) if isinstance(event, SessionEnded)]
    assert (ended.result.status, ended.result.node, ended.result.branch) == (Status.INTERRUPTED, "pipe", None)
    assert "was lost" in str(ended.result.error)


async def test_work_that_a_node_could_not_report_is_fetched_when_it_is_back(repo: Path) -> None:
    """It is on a ref of its own, which no merge looks at; another start of the node finds what the killed one left."""
    spec = worker("echo kept > kept.txt; echo begun; sleep 600")
    async with asyncio.timeout(SECONDS), opened(repo, parse_nodes("pipe:1")) as running:
        has_fetched = asyncio.Event()
        running.context.ledger.subscribe(
            once(
                lambda recorded: isinstance(recorded.event, Output),
                lambda: os.kill(node_processes(os.getpid())[0], signal.SIGKILL),
            )
        )
        running.context.ledger.subscribe(
            once(lambda recorded: isinstance(recorded.event, WorkFetched), has_fetched.set)
        )
        try:
            await running.executor.run(running.context, spec, lambda _: None)
        except SessionLost:
            await has_fetched.wait()

    (fetched,) = [event for event in events(repo) if isinstance(event, WorkFetched)]
    assert (fetched.session, fetched.ref) == (spec.session, f"refs/shoal/kept/work/{spec.hex}/node")
    assert git(repo, "show", f"{fetched.ref}:kept.txt") == "kept"
    assert git(repo, "for-each-ref", "refs/heads/agent") == ""


async def test_a_second_run_on_the_same_node_gets_only_what_is_new(repo: Path) -> None:
    (repo / "large.bin").write_bytes(os.urandom(300_000))
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "large")
    sent: list[int] = []
    for text in ("one", "two"):
        (repo / "small.txt").write_text(text)
        git(repo, "add", "-A")
        git(repo, "commit", "-qm", text)
        async with opened(repo, parse_nodes("pipe:1")) as running:
            (node,) = running.executor.fleet.nodes.values()  # type: ignore[attr-defined]  # it is remote
            sent.append(node.connection.packed_bytes)
            result = await running.executor.run(running.context, replace(worker("cat small.txt")), lambda _: None)
            assert result.output.strip() == text

    assert sent[0] > 300_000
    assert sent[1] < 2_000


async def test_sessions_that_started_are_named_with_their_node(repo: Path) -> None:
    await run_on(repo, "pipe:1,pipe:1", "true", 2, lambda _: None)

    started = [event for event in events(repo) if isinstance(event, SessionStarted)]
    assert {event.node for event in started} == {"pipe-1", "pipe-2"}
