"""Open a run: its lock, ledger, base and sandbox. What can be refused is refused here, before any agent starts."""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.adapters.client import this_host
from shoal.databases.kind import Databases
from shoal.databases.own_server import clear_own_servers
from shoal.errors import BadInput, Broken, Unavailable
from shoal.gateway.gateway import open_gateway
from shoal.git.refs import pin, refuse_blocked_names, unpin
from shoal.git.repository import inspect, resolve
from shoal.git.run import git_text
from shoal.git.snapshot import snapshot
from shoal.limits.choose import choose
from shoal.limits.guard import open_guard
from shoal.limits.kind import Enforcer
from shoal.model.budget import ScopedBudget, Spending
from shoal.model.events import SessionEnded, Waiting
from shoal.model.gateway import Recording
from shoal.model.plan import Plan
from shoal.model.repository import Repository
from shoal.model.talk import TalkEvent
from shoal.runs.killed_sessions import has_unfinished
from shoal.runs.preflight import (
    adapters_for,
    assert_holdable,
    assert_installed,
    assert_recordable,
    assert_rooted,
    equip_steps,
    mask_of,
    with_commits,
)
from shoal.runs.recovery import Recovery, reconcile, reconcile_run
from shoal.runs.request import RunRequest, assert_unowned, assert_unowned_elsewhere
from shoal.sessions.context import RunContext
from shoal.sessions.host_probe import kind_of_workspace, probe_sandbox
from shoal.sessions.session_dir import User, own_folder
from shoal.sessions.setup.project import project_ready
from shoal.sessions.toolchain import search_path
from shoal.steps.resolve_task import without_secret_label
from shoal.steps.workers import WorkerSettings
from shoal.store.choice import choose_store
from shoal.store.following import find_live
from shoal.store.known_repositories import register
from shoal.store.ledger import Ledger, open_ledger
from shoal.store.lock import hold_lock
from shoal.store.notes import notes_at
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events, store_at
from shoal.store.rebuild import OnRebuilt
from shoal.store.reserve import release_if_full
from shoal.talk.hub import TalkHub
from shoal.workspaces.base_checkouts import base_ready
from shoal.workspaces.remove import Trash

AGENT_UID = 1000
MOST_SESSIONS = 50
"""For how many sessions at a time a database server of ours has room, if the plan names no more."""
OWN_SECONDS = 5.0  # a recovery owns a run for a moment


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A run whose agents may start: its context, and its plan as resolved for this host and repository."""

    context: RunContext
    plan: Plan
    """With commits in place of the names that stages start from."""
    equipment: Mapping[str, WorkerSettings] = field(default_factory=dict)
    """The settings of the workers of each step."""
    recovery: Recovery = field(default_factory=Recovery)
    """What killed runs had left: what was imported now, and what could not be."""


def without_logins(plan: Plan) -> Plan:
    """Return the plan of a replay, which needs no login: its clients act as if there were one."""
    held = (replace(known, login_file=os.devnull) if known.login else known for known in plan.upstreams)
    return replace(plan, upstreams=tuple(held))


@contextlib.asynccontextmanager
async def open_run(request: RunRequest, plan: Plan | None = None) -> AsyncIterator[OpenRun]:
    """Open the run that *request* asks for: its lock, its ledger, its pinned and checked-out base, its sandbox.

    What *plan* asks for and cannot get is refused first, before anything is written into the repository. Then the
    work of killed runs is imported. This is the only way to a `RunContext`, also without a plan.
    """
    plan = plan or Plan(name=request.name, steps=())
    if request.replay is not None:
        plan = without_logins(plan)
    environ = search_path(request.environ, plan.toolchains)
    adapters = adapters_for(plan, this_host(), environ)
    await assert_installed(plan, this_host(), environ)
    rebuilt: list[str] = []
    async with (
        _open_context(replace(request, environ=environ), plan, rebuilt.append) as context,
        open_gateway(environ) as gateway,
    ):
        context = replace(context, gateway=gateway, upstreams=plan.upstreams)
        context = replace(context, talk=TalkHub(context.run, context.ledger, context.mask, notes_at(context.paths)))
        if request.is_reopened:
            _restore_talk(context)
        if request.on_event is not None:
            context.ledger.subscribe(request.on_event)
        if request.is_recorded or request.replay is not None:
            context = await _with_recording(context, request, plan)
        if plan.budget is not None:
            context.budgets.add(ScopedBudget(scope="run", limit=plan.budget))
        await assert_holdable(context, plan)
        stages = await with_commits(context.repository, plan.steps)
        settled = replace(plan, steps=tuple(without_secret_label(stage, context.mask.text) for stage in stages))
        equipment = await equip_steps(context, settled, adapters)
        recovery = await reconcile(context, is_patient=request.is_patient)
        if request.is_reopened:
            recovery += await reconcile_run(context, context.run)  # what a killed merge of this run left
            await pin(context.repository, context.run, context.base.commit)
            _count_spent(context, plan)  # now that the killed sessions of this run have an end, and their usage
        settled = replace(settled, notes=(*settled.notes, *rebuilt, *recovery.notes))
        recovery = replace(recovery, rebuilt=tuple(rebuilt))
        async with _databases(context, request, plan) as databases:
            context = replace(context, databases=databases)
            yield OpenRun(context=context, plan=settled, equipment=equipment, recovery=recovery)


async def _with_recording(context: RunContext, request: RunRequest, plan: Plan) -> RunContext:
    """Record the run, or answer it from a recording; every client has to be on the gateway, which does that."""
    folder = context.paths.recording(request.replay or context.run)
    if request.replay is not None and not folder.is_dir():
        raise BadInput(f"{request.replay} was not recorded; record a run with `shoal run --record`")
    assert_recordable(plan)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    recording = Recording(folder=str(folder), is_replay=request.replay is not None)
    date = await git_text(context.repository.git, "show", "-s", "--format=%ct", context.base.commit)
    # With the same dates, a replay's commits have the same names, which agents see in their history.
    identity = replace(context.repository.identity, date=int(date))
    return replace(context, recording=recording, repository=replace(context.repository, identity=identity))


@contextlib.asynccontextmanager
async def _databases(context: RunContext, request: RunRequest, plan: Plan) -> AsyncIterator[Databases | None]:
    """Hold the server for the databases of all sessions, if they share one."""
    await clear_own_servers(context.paths, context.run)
    if not request.database.is_shared:
        yield None
        return
    try:
        from shoal.databases.shared import DatabaseOrder, open_shared_database  # imports psycopg, for its users only
    except ImportError as missing:
        what, remedy = "database_strategy: shared", "run: pip install 'shoal[postgres]'"
        raise Unavailable(what, f"{missing.name} is not installed", remedy) from None

    order = DatabaseOrder(
        run=context.run,
        paths=context.paths,
        url=request.database.find_url(request.environ),
        sockets=own_folder(),
        sessions=max(plan.max_concurrent, MOST_SESSIONS),
        environ=request.environ,
        exports=request.keep_database,
        on_wait=lambda reason: context.ledger.post(Waiting(run=context.run, reason=context.mask.text(reason))),
    )
    async with open_shared_database(order) as databases:
        yield databases


def _restore_talk(context: RunContext) -> None:
    """Go on with the messages and children of the agents of a run that is resumed."""
    if context.talk is not None:
        events = (recorded.event for recorded in store_at(context.paths).read_talk(context.run))
        context.talk.restore([event for event in events if isinstance(event, TalkEvent)])


def _count_spent(context: RunContext, plan: Plan) -> None:
    """Count what the earlier processes of a run spent: a budget holds for the whole of it."""
    personas = {
        step.name: [scope for scope in step.task.budgets if scope.startswith("persona:")] for step in plan.working
    }
    for recorded in read_events(context.paths, context.run):
        if isinstance(recorded.event, SessionEnded):
            ended = recorded.event
            scopes = ("run", f"step:{ended.step}", *personas.get(ended.step, ()))
            context.budgets.add_spent(scopes, Spending.of_usage(ended.result.usage))


@contextlib.asynccontextmanager
async def _open_context(request: RunRequest, plan: Plan, on_rebuilt: OnRebuilt) -> AsyncIterator[RunContext]:
    """Hold everything that the sessions of a run share."""
    repository, commit = await _find_repository(request)
    await assert_rooted(plan, repository)
    paths = _make_state(request, repository)
    sandbox = await probe_sandbox(request.sandbox, request.environ)
    enforcer = await _enforcer(request)
    kind = await kind_of_workspace(request.strategy, sandbox, paths, stays=not request.cleanup)
    run = request.run or f"{request.name}-{time.strftime('%Y%m%d')}-{secrets.token_hex(2)}"
    async with (
        open_ledger(store_at(paths, on_rebuilt), on_blocked=request.on_blocked) as book,
        _hold_run(paths, run, book),
        _hold_pin(repository, paths, run, commit),
        base_ready(repository, commit, paths.bases, on_gather=request.on_gather) as base,
        project_ready(repository, base, paths, run) as project,
        _trash(paths) as trash,
        open_guard(enforcer) as guard,
    ):
        with enforcer.hold_shared():
            yield RunContext(
                run=run,
                repository=repository,
                paths=paths,
                ledger=book,
                sandbox=sandbox,
                kind=kind,
                base=base,
                environ=request.environ,
                trash=trash,
                project=project,
                enforcer=enforcer,
                # Root's agents run as an ordinary user in their sandbox: clients and databases refuse to run as root.
                user=User(os.getuid() or AGENT_UID, os.getgid() or AGENT_UID),
                mask=mask_of(plan, this_host(), request.environ, request.secrets),
                toolchains=plan.toolchains,
                executable=plan.executable,
                grace=request.grace,
                cleanup=request.cleanup,
                keeps_database=request.keep_database,
                checkpoint_seconds=request.checkpoint_seconds,
                is_guarded=guard.has_groups and not sandbox.confines,
                guard=guard,
                bounds=request.bounds,
                on_gather=request.on_gather,
            )


def _make_state(request: RunRequest, repository: Repository) -> StatePaths:
    paths = StatePaths.of(repository.home)
    if paths.root.is_dir():
        release_if_full(paths.reserve)
    paths.create()
    exclude_state(repository)
    choose_store(paths, request.store, request.environ)
    find_live(paths)  # later, a server that does not answer is waited for; now its address may be wrong
    if request.is_listed:
        register(paths, request.environ)
    return paths


async def _enforcer(request: RunRequest) -> Enforcer:
    """Choose what enforces limits here; a limit for all agents together is enforced, or the run does not start."""
    enforcer = await choose(fleet=request.fleet)
    if request.fleet is not None and not {"memory", "pids"} <= enforcer.holds_fleet:
        why = f"{enforcer.name} cannot enforce limits for all agents together"
        raise Unavailable("runtime.fleet_limits", why, "use a host with writable control groups, or leave them out")
    enforcer.sweep()
    return enforcer


@contextlib.asynccontextmanager
async def _trash(paths: StatePaths) -> AsyncIterator[Trash]:
    """Empty the trash during the run, and once more at its end."""
    trash = Trash(paths.root / "trash")
    error: BaseException | None = None
    async with asyncio.TaskGroup() as group:
        emptying = group.create_task(trash.keep_empty())
        try:
            yield trash
        except BaseException as raised:  # passed around the task group, which would wrap it
            error = raised
        emptying.cancel()
    trash.spares.close()
    await trash.empty()
    if error is not None:
        raise error


async def _find_repository(request: RunRequest) -> tuple[Repository, str]:
    if request.strategy == "directory" and not _is_in_repository(request.folder):
        if request.base is not None:
            raise BadInput(f"{request.folder} is a plain folder without commits: leave --base out")
        paths = StatePaths.of(request.folder.resolve())
        paths.create()
        return await snapshot(request.folder.resolve(), paths.root / "snapshot.git")
    repository = await inspect(request.folder, request.environ)
    await refuse_blocked_names(repository)
    return repository, await resolve(repository, request.base)


async def home_of(request: RunRequest) -> Path:
    """Return the folder that contains the state of a run; nothing is created."""
    if request.strategy == "directory" and not _is_in_repository(request.folder):
        return request.folder.resolve()
    return (await inspect(request.folder, request.environ)).home


def _is_in_repository(folder: Path) -> bool:
    place = folder.resolve()
    return any((folder / ".git").exists() for folder in (place, *place.parents))


def exclude_state(repository: Repository) -> None:
    """Keep `.shoal` out of the user's status with the repository's exclude file, never with a tracked one."""
    exclude = repository.git / "info" / "exclude"
    text = exclude.read_text(errors="surrogateescape") if exclude.is_file() else ""
    if "/.shoal/" not in text.splitlines():
        exclude.parent.mkdir(exist_ok=True)
        with exclude.open("a", encoding="utf-8") as file:
            file.write(("" if text.endswith("\n") or not text else "\n") + "/.shoal/\n")


@contextlib.asynccontextmanager
async def _hold_run(paths: StatePaths, run: str, ledger: Ledger) -> AsyncIterator[None]:
    """Own the run: an unlocked file means that something of the run was not imported."""
    lock = paths.run_lock(run)
    async with contextlib.AsyncExitStack() as stack:
        try:
            held = await stack.enter_async_context(hold_lock(lock, timeout=OWN_SECONDS))
        except Broken:
            assert_unowned(paths, run)
            raise
        assert_unowned_elsewhere(paths, run)
        await ledger.claim(run)
        try:
            yield
        finally:
            if not has_unfinished(paths, run):
                held.remove()


@contextlib.asynccontextmanager
async def _hold_pin(repository: Repository, paths: StatePaths, run: str, commit: str) -> AsyncIterator[None]:
    """Hold the base with a ref, so that git gc cannot remove the objects that the agents borrow.

    What a second cancellation cut off is imported by the next start, which needs its bases until then.
    """
    try:
        await pin(repository, run, commit)
        yield
    finally:
        if not has_unfinished(paths, run):
            await unpin(repository, run)
