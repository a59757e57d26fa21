"""What every executor promises: a new carrier of nodes is one line of the table, and has to pass unchanged."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from shoal.adapters.client import this_host
from shoal.adapters.command import CommandAdapter
from shoal.adapters.kind import Invocation, SessionPaths
from shoal.adapters.registry import adapter_of
from shoal.errors import Unavailable
from shoal.executors.kind import Executor
from shoal.executors.local import LocalExecutor
from shoal.executors.remote import open_executor
from shoal.limits.choose import choose
from shoal.model.agent import AgentSpec
from shoal.model.artifact import Artifact, Type
from shoal.model.events import AgentMessaged, Output, Recorded, SessionEnded, SessionStarted
from shoal.model.limits import ResourceLimits
from shoal.model.masking import Mask
from shoal.model.nodes import NodeAddress, parse_nodes
from shoal.model.plan import Plan
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.runs.context import open_run
from shoal.runs.request import RunRequest
from shoal.sessions.context import RunContext
from shoal.sessions.session_control import AgentMessage, Inbox, SessionControl
from shoal.sessions.worker import WorkerSpec
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events, read_session
from tests.acting import assert_nothing_left, shown, step
from tests.conftest import git
from tests.executors.hosts import open_hosts

SECONDS = 60

ALONE = (pytest.mark.deep, pytest.mark.alone)  # the hosts of two tests at a time would have the same addresses
EXECUTORS = [
    pytest.param("local", id="local"),
    pytest.param("pipe:4", id="pipe"),
    pytest.param("node1:4,node2:4,node3:4", marks=ALONE, id="ssh"),
    pytest.param("ray", marks=ALONE, id="ray"),
]
"""The nodes of each, as `--on` takes them; none but the first runs sessions in this process."""
EVERY = pytest.mark.parametrize("nodes", EXECUTORS, indirect=True)
Nodes = tuple[NodeAddress, ...]


@pytest.fixture(scope="module")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Three hosts with an sshd, which this process may reach."""
    with open_hosts(tmp_path_factory.mktemp("hosts")) as hosts, pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "PATH"):
            patch.setenv(name, hosts.environ[name])
        yield


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    """Three nodes of Ray."""
    from tests.executors.clusters import open_cluster  # Ray is installed for the deep tests alone

    with open_cluster():
        yield


@pytest.fixture(scope="module")  # all tests of one executor run together: hosts and clusters have networks of their own
def nodes(request: pytest.FixtureRequest) -> Nodes:
    """The nodes of an executor, which are up."""
    text: str = request.param
    if text == "local":
        return ()
    if text.startswith("node1"):
        request.getfixturevalue("ssh_hosts")
    if text == "ray":
        request.getfixturevalue("ray_cluster")
    return parse_nodes(text)


def is_of(result: WorkerResult, nodes: Nodes) -> bool:
    """Say whether a session ran on one of *nodes*; those of a cluster have longer names than it."""
    return any(result.node.startswith(node.name) for node in nodes) if nodes else result.node == ""


@dataclass(frozen=True)
class Opened:
    """An open run, and what runs its sessions."""

    context: RunContext
    executor: Executor


def worker(script: str, **more: object) -> WorkerSpec:
    task = step("work", script, **more).task  # type: ignore[arg-type]
    return WorkerSpec(step="work", index=0, count=1, task=task, adapter=CommandAdapter())


@contextlib.asynccontextmanager
async def opened(repo: Path, nodes: Nodes, **more: object) -> AsyncIterator[Opened]:
    plan = Plan(name="t", steps=(), nodes=nodes)
    request = RunRequest(folder=repo, environ=os.environ, grace=0.5, **more)  # type: ignore[arg-type]
    async with open_run(request, plan) as run, open_executor(run.context, run.plan) as remote:
        yield Opened(run.context, remote or LocalExecutor())


async def result_of(repo: Path, nodes: Nodes, spec: WorkerSpec) -> WorkerResult:
    async with asyncio.timeout(SECONDS), opened(repo, nodes) as run:
        return await run.executor.run(run.context, spec, lambda _: None)


def sessions_with(repo: Path, kind: type[SessionStarted] | type[SessionEnded]) -> list[str]:
    found = [recorded.event for recorded in read_events(StatePaths.of(repo))]
    return [event.session for event in found if isinstance(event, kind)]


def hear(word: str, act: Callable[[], None]) -> Callable[[Recorded], None]:
    """Act once the agent has printed *word*."""

    def listen(recorded: Recorded) -> None:
        if isinstance(recorded.event, Output) and word in recorded.event.text:
            act()

    return listen


@EVERY
async def test_the_work_is_on_a_branch_and_the_result_is_reported_once(repo: Path, nodes: Nodes) -> None:
    reported: list[WorkerResult] = []
    async with opened(repo, nodes) as run:
        result = await run.executor.run(run.context, worker("echo new > made.txt"), reported.append)

    assert result.status is Status.SUCCEEDED
    assert shown(repo, result, "made.txt") == "new"
    assert reported == [result]
    assert is_of(result, nodes)
    assert sessions_with(repo, SessionStarted) == sessions_with(repo, SessionEnded) == [result.session]
    assert_nothing_left(repo)


@EVERY
async def test_an_agent_that_changes_nothing_leaves_no_branch(repo: Path, nodes: Nodes) -> None:
    result = await result_of(repo, nodes, worker("true"))

    assert (result.status, result.branch, result.commit) == (Status.NO_CHANGES, None, None)


@EVERY
async def test_an_agents_failure_is_a_result(repo: Path, nodes: Nodes) -> None:
    result = await result_of(repo, nodes, worker("echo kept > kept.txt; echo sorry >&2; exit 3"))

    assert (result.status, result.exit_code, result.error) == (Status.FAILED, 3, "it exited with 3: sorry")
    assert shown(repo, result, "kept.txt") == "kept"


@EVERY
async def test_a_time_limit_ends_the_agent_and_keeps_its_work(repo: Path, nodes: Nodes) -> None:
    result = await result_of(repo, nodes, worker("echo kept > kept.txt; sleep 600", timeout=1.5))

    assert (result.status, result.limit) == (Status.TIMED_OUT, "time")
    assert shown(repo, result, "kept.txt") == "kept"


@EVERY
async def test_a_memory_limit_ends_the_agent(repo: Path, nodes: Nodes) -> None:
    assert (await choose()).name  # whatever enforces it here
    limits = ResourceLimits(memory_mb=64)
    script = "python3 -c 'import time; held = bytearray(300 * 2**20); time.sleep(60)'"
    result = await result_of(repo, nodes, worker(script, limits=limits))

    assert (result.status, result.limit) == (Status.OVER_LIMIT, "memory")


class BrokenAdapter(CommandAdapter):
    """An adapter with a bug."""

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        raise ValueError("a bug")


@EVERY
async def test_a_bug_is_raised_and_is_no_agents_failure(repo: Path, nodes: Nodes) -> None:
    """An adapter that exists only in this program cannot be on a node."""
    reported: list[WorkerResult] = []
    with pytest.raises((ValueError, Unavailable), match=r"a bug|exists only in this program"):
        async with opened(repo, nodes) as run:
            await run.executor.run(run.context, replace(worker("true"), adapter=BrokenAdapter()), reported.append)

    assert reported == []
    assert sessions_with(repo, SessionEnded) == []


@EVERY
async def test_a_cancelled_session_keeps_its_work_and_is_reported(repo: Path, nodes: Nodes) -> None:
    reported: list[WorkerResult] = []
    has_begun = asyncio.Event()
    async with opened(repo, nodes) as run, asyncio.TaskGroup() as group:
        run.context.ledger.subscribe(hear("begun", has_begun.set))
        script = "echo begun > begun.txt; echo begun; sleep 600"
        running = group.create_task(run.executor.run(run.context, worker(script), reported.append))
        async with asyncio.timeout(SECONDS):
            await has_begun.wait()
        running.cancel()

    (result,) = reported
    assert result.status is Status.CANCELLED
    assert shown(repo, result, "begun.txt") == "begun"
    assert sessions_with(repo, SessionEnded) == [result.session]
    assert_nothing_left(repo)


@EVERY
async def test_a_stopped_session_keeps_its_work_and_names_who_stopped_it(repo: Path, nodes: Nodes) -> None:
    reported: list[WorkerResult] = []
    control = SessionControl()
    async with opened(repo, nodes) as run, asyncio.timeout(SECONDS):
        run.context.ledger.subscribe(hear("begun", lambda: control.stop_for("ada")))
        script = "echo begun > begun.txt; echo begun; sleep 600"
        result = await run.executor.run(run.context, worker(script), reported.append, control)

    assert (result.status, result.stopped_by, result.error) == (Status.CANCELLED, "ada", "stopped by ada")
    assert shown(repo, result, "begun.txt") == "begun"
    assert reported == [result]


@EVERY
async def test_sessions_run_side_by_side(repo: Path, nodes: Nodes) -> None:
    """Each has a workspace of its own, and none waits for another."""
    async with opened(repo, nodes) as run, asyncio.TaskGroup() as group:
        specs = [replace(worker(f"echo {index} > n.txt"), index=index, count=2) for index in range(2)]
        tasks = [group.create_task(run.executor.run(run.context, spec, lambda _: None)) for spec in specs]

    assert [shown(repo, task.result(), "n.txt") for task in tasks] == ["0", "1"]


@EVERY
async def test_a_later_session_starts_from_another_commit(repo: Path, nodes: Nodes) -> None:
    """A node gets only what is new of it."""
    first = await result_of(repo, nodes, worker("echo one > one.txt"))
    assert first.commit is not None
    async with opened(repo, nodes, base=first.commit) as run:
        result = await run.executor.run(run.context, worker("cat one.txt > two.txt"), lambda _: None)

    assert shown(repo, result, "two.txt") == "one"
    assert git(repo, "merge-base", first.commit, str(result.commit)) == first.commit


@EVERY
async def test_artifacts_are_stored_here_under_names_of_ours(repo: Path, nodes: Nodes) -> None:
    declared = (Artifact(name="plan", path="out/plan.json", type=Type.JSON), Artifact(name="b", path="b.bin"))
    script = "mkdir out; echo '{\"a\": 1}' > out/plan.json; head -c 3000000 /dev/zero | tr '\\0' 'x' > b.bin"
    result = await result_of(repo, nodes, replace(worker(script), artifacts=declared))

    assert Path(result.artifacts["plan"]).read_text().strip() == '{"a": 1}'
    assert Path(result.artifacts["b"]).stat().st_size == 3_000_000
    assert all(Path(path).is_relative_to(StatePaths.of(repo).results) for path in result.artifacts.values())


@EVERY
async def test_files_of_any_bytes_and_names_come_back(repo: Path, nodes: Nodes) -> None:
    script = r"""head -c 200000 /dev/urandom > random.bin; printf 'x' > "$(printf 'a\nb \303\274')"; ln -s f link
        printf '#!/bin/sh\n' > run; chmod +x run; sha256sum < random.bin"""
    result = await result_of(repo, nodes, worker(script))

    assert result.status is Status.SUCCEEDED, result
    names = git(repo, "ls-tree", "-r", "-z", "--name-only", str(result.commit)).split("\0")
    assert {"random.bin", "a\nb ü", "link", "run"} <= set(names)
    assert git(repo, "ls-tree", str(result.commit), "run").startswith("100755")


@EVERY
async def test_secrets_reach_the_agent_and_are_masked_everywhere(repo: Path, nodes: Nodes) -> None:
    spec = worker('echo "it is $TOKEN"; echo "$TOKEN" | wc -c')
    secret = "sesame-open-8d3b1"
    task = replace(spec.task, env={"TOKEN": secret}, secrets=frozenset({"TOKEN"}), secret_sources={"TOKEN": "MY_TOKEN"})
    async with opened(repo, nodes) as run:
        context = replace(run.context, mask=Mask.of({"TOKEN": secret}))
        result = await run.executor.run(context, replace(spec, task=task), lambda _: None)

    assert f"{len(secret) + 1}" in result.output
    assert secret not in result.output
    assert not [path for path in StatePaths.of(repo).root.rglob("*.db*") if secret.encode() in path.read_bytes()]


@EVERY
async def test_a_message_reaches_the_agent_between_its_turns(repo: Path, nodes: Nodes) -> None:
    actions = [{"say": "ready"}, {"receive": "got.txt"}]
    agent = AgentSpec(name="s", adapter="scripted", script=json.dumps(actions))
    task = ResolvedTask(name="work", prompt="x", agent=agent)
    spec = replace(worker("true"), task=task, adapter=adapter_of(agent, this_host()))
    control = SessionControl(inbox=Inbox(is_open=True))
    message = AgentMessage(text="go on", by="ada", request="r1")
    async with opened(repo, nodes) as run, asyncio.timeout(SECONDS):
        run.context.ledger.subscribe(hear("ready", lambda: control.inbox.put(message)))
        result = await run.executor.run(run.context, spec, lambda _: None, control)

    told = [recorded.event for recorded in read_session(StatePaths.of(repo), result.session)]
    assert [event.text for event in told if isinstance(event, AgentMessaged) and event.is_delivered] == ["go on"]
    assert shown(repo, result, "got.txt") == "go on"


@EVERY
async def test_the_output_can_be_followed_while_the_agent_works(repo: Path, nodes: Nodes) -> None:
    """What it prints is recorded here before it has ended."""
    control, heard = SessionControl(), asyncio.Event()
    async with opened(repo, nodes) as run, asyncio.TaskGroup() as group, asyncio.timeout(SECONDS):
        run.context.ledger.subscribe(hear("line 1", heard.set))
        spec = worker("echo line 1; sleep 600")
        running = group.create_task(run.executor.run(run.context, spec, lambda _: None, control))
        await heard.wait()

        assert not running.done()
        control.ask_to_stop()
