"""A session's ways out of its sandbox: to its models on `network: gateway`, and to the tools of agents that talk."""

import asyncio
import contextlib
import os
import re
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from shoal.adapters.client import Client
from shoal.adapters.gateway_settings import UsesGateway, usual_settings
from shoal.adapters.kind import NOWHERE, Adapter
from shoal.errors import BadInput, Broken, SandboxBroken, Unavailable
from shoal.gateway.control_socket import Message
from shoal.gateway.find_upstreams import ADDRESSES, find_upstreams, without_keys
from shoal.gateway.kind import ListeningSession, SessionGateway
from shoal.gateway.logins import KNOWN, LoginUnusable, read_tokens
from shoal.gateway.prices import table_date
from shoal.model.activity import Act, Activity
from shoal.model.budget import ScopedBudget, Spending
from shoal.model.events import PermissionDecided
from shoal.model.gateway import GatewayAccess, ModelAnswered, Recording, SessionOrder, Upstream
from shoal.model.policy import NETWORKS, Network, Policy
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import sum_usage
from shoal.model.talk import TalkAccess
from shoal.sandboxes.kind import TRUE, Sandbox
from shoal.sessions.context import RunContext
from shoal.sessions.credentials import login_files
from shoal.sessions.sandboxed import Listen, open_sandboxed
from shoal.sessions.talking import talk_services, talk_variables
from shoal.sessions.worker import Session, WorkerSpec

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
TOLD_AGAIN_SECONDS = 5.0
"""The gateway reports again within this time that it holds a request back."""
NOT_PLAIN = re.compile(r"[^A-Za-z0-9]")
NOTICEABLE = 0.02
"""By how much a client's own count may differ from the one on the wire before that is noted."""


def session_upstreams(
    declared: Sequence[Upstream], task: ResolvedTask, client: Client | None, environ: Mapping[str, str]
) -> tuple[Upstream, ...]:
    """Return the models that a session may ask: of a client only its own, and those that the user's file names.

    A login is used for its own client only, and goes before a key, because the user has asked for it by name.
    """
    plain = [upstream for upstream in declared if not upstream.login]
    found = find_upstreams(plain, _variables(task, environ))
    if client is None or not client.upstreams:
        return found
    held = _find_login(declared, client, environ)
    named = {*client.upstreams, *(upstream.name for upstream in plain)}
    own = {upstream.name: upstream for upstream in found if upstream.name in named}
    return tuple({**own, **({held.name: held} if held else {})}.values())


def _find_login(declared: Sequence[Upstream], client: Client, environ: Mapping[str, str]) -> Upstream | None:
    named = (upstream for upstream in declared if upstream.login and upstream.login == client.held_login)
    return next((KNOWN[upstream.login].complete(upstream, environ) for upstream in named), None)


def assert_fixed_addresses(task: ResolvedTask) -> None:
    """Refuse a template where a key is sent: what an agent says could be filled in."""
    for name, text in {**task.agent.env, **task.env}.items():
        if name in ADDRESSES and "{{" in text:
            raise BadInput(
                f"`{name}` says where the key of a model is sent, so it cannot contain a template; write the address,"
                " or name it in `gateway.upstreams`"
            )


def assert_upstreams(
    declared: Sequence[Upstream], task: ResolvedTask, adapter: Adapter, environ: Mapping[str, str]
) -> None:
    """Refuse a client whose model the gateway cannot ask, and say what to do instead."""
    client = adapter.client
    if client is None or not client.upstreams:
        return
    what = f"`network: gateway` for the agent client {adapter.name}"
    given = "your login and your network" if client.logins else "your network"
    instead = f"use `--network host` (in a file: `network: host`), which gives it {given}"
    variables = _variables(task, environ)
    for name, usable in client.elsewhere.items():
        if variables.get(name) and variables[name] not in usable:
            raise Unavailable(what, f"${name} chooses a provider that the gateway cannot ask", instead)
    upstreams = session_upstreams(declared, task, client, environ)
    _assert_logins(upstreams)
    if any(upstream.name in client.upstreams for upstream in upstreams):
        formats = {upstream.name: upstream.format for upstream in upstreams}
        access = GatewayAccess(url="http://127.0.0.1", token="", formats=formats)
        adapter.invocation(task, replace(NOWHERE, gateway=access))  # refuses settings that bypass the gateway
        return
    login = next((f"~/{file.relative_to(environ['HOME'])}" for file in login_files(adapter, environ)), None)
    held = client.held_login
    opt_in = f"`--login {held}` (in a file: `gateway: {{logins: [{held}]}}`)"
    if login is None and client.needs_login and client.upstreams != ("copilot",):
        remedy = f"{client.login}; a login without a key also needs {opt_in if held else '`--network host`'}"
        raise Unavailable(f"the agent client {adapter.name}", "it is not logged in on this host", remedy)
    key = KEYS.get(client.upstreams[0], f"{client.upstreams[0].upper()}_API_KEY")
    found = f"it has only a login ({login})" if login else "there is none for its model"
    safe = f"use {opt_in}, which keeps that login outside the sandbox; or " if login and held else ""
    raise Unavailable(what, f"the gateway needs a key, and {found}", f"{safe}set {key}; or {instead}")


def _assert_logins(upstreams: Sequence[Upstream]) -> None:
    """Refuse a login that cannot be used, or could not be written back once it is renewed."""
    for upstream in upstreams:
        if not upstream.login or upstream.login_file == os.devnull:
            continue
        what, file = f"`--login {upstream.login}`", Path(upstream.login_file)
        remedy = f"log in with `{upstream.login}`"
        try:
            read_tokens(KNOWN[upstream.login], file)
        except LoginUnusable as error:
            raise Unavailable(what, str(error), remedy) from None
        if not os.access(file.resolve().parent, os.W_OK):
            why = f"{file.resolve().parent} is read-only, so a renewed login would be lost"
            raise Unavailable(what, why, "make it writable; or set a key")


KEYS = {"copilot": "COPILOT_PROVIDER_BASE_URL and COPILOT_PROVIDER_API_KEY"}


def assert_can_listen(sandbox: Sandbox, network: Network) -> None:
    """Refuse the gateway in a sandbox that has no network of its own to listen in."""
    if NETWORKS[network].has_listener and not sandbox.can_listen:
        why = f"the sandbox {sandbox.name} has no network of its own, in which Shoal could listen"
        remedy = "use the bubblewrap sandbox; or `network: host`, which lets agents reach every host"
        raise Unavailable("`network: gateway`", why, remedy)


async def assert_listener(context: RunContext) -> None:
    """Try to listen in a sandbox; raise `Unavailable` where this host does not let us."""
    gateway = context.gateway
    if gateway is None or gateway.is_tried or not context.sandbox.can_listen:
        return
    policy = Policy(token=secrets.token_hex(8), network=Network.GATEWAY)
    try:
        async with open_sandboxed(
            context.sandbox, TRUE, policy, sink=lambda _stream, _data: None, listen=gateway.try_listener
        ) as sandboxed:
            await sandboxed.wait()
    except (Broken, SandboxBroken, TimeoutError) as error:
        remedy = "run `shoal doctor`; or use `network: host`, which lets agents reach every host"
        raise Unavailable("`network: gateway`", str(error) or "Shoal could not listen in time", remedy) from None


def _variables(task: ResolvedTask, environ: Mapping[str, str]) -> Mapping[str, str]:
    return {**environ, **task.agent.env, **task.env}


class ActivityLog(Protocol):
    """Shows what an agent does."""

    def act(self, activity: Activity) -> None:
        """Note an activity."""


@dataclass(slots=True)
class ModelAccess:
    """What the gateway does for a process in a sandbox, and what it counted; `None` on any other network."""

    session: Session
    network: Network
    gateway: SessionGateway | None = None
    services: ListeningSession | None = None
    """What listens in its sandbox: the gateway, or only what the coordinator serves."""
    talk: TalkAccess | None = None
    answers: int = 0
    usage: dict[str, float] = field(default_factory=dict)
    unpriced: frozenset[str] = frozenset()
    refused: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the gateway refused a request for good."""
    why_stopped: str | None = None
    """Which budget is reached, or where a replay diverged."""
    is_over_budget: bool = True
    log: ActivityLog | None = None
    """Where it is shown that the agent waits for its model, which is no stall."""

    @property
    def access(self) -> GatewayAccess | None:
        """What the process needs to use the gateway."""
        return None if self.gateway is None else self.gateway.access

    @property
    def listen(self) -> Listen | None:
        """What listens in its sandbox."""
        return None if self.services is None else self.services.listen

    @property
    def lost(self) -> asyncio.Event | None:
        """Set when the gateway's process has ended before it."""
        return None if self.gateway is None else self.gateway.lost

    def environment(self, env: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
        """Take keys and addresses out of *env*, and name the gateway; *own* are the variables of the invocation."""
        env = {**env, **talk_variables(self.talk, env)}
        if self.gateway is None or self.access is None:
            return dict(env)
        adapter = self.session.worker.adapter
        client = adapter.client
        withheld = {*(client.keys if client else ()), *PROXIES, *map(str.upper, PROXIES)}
        settings = (
            adapter.gateway_settings(self.access) if isinstance(adapter, UsesGateway) else usual_settings(self.access)
        )
        leading = {name: own.get(name, value) for name, value in settings.env.items()}
        clean = without_keys(env, self.gateway.order.upstreams)
        kept = {name: value for name, value in clean.items() if name not in withheld}
        return {**kept, **_proxy_variables(self.access), **leading}

    def note_message(self, message: Message) -> None:
        """Record what the gateway says about the session."""
        if message["event"] == "waiting" and self.log is not None:
            why = f"waiting for {message['what']}"
            self.log.act(Activity(act=Act.RETRY, text=why, seconds=message["seconds"] + TOLD_AGAIN_SECONDS))
        if message["event"] in ("budget", "divergence", "failed"):
            self.is_over_budget = message["event"] == "budget"
            self.why_stopped = self.why_stopped or self.session.context.mask.text(message["why"])
            self.refused.set()
        if message["event"] == "exchange":
            if message["spent"] is not None:
                spent = Spending.of(message["spent"])
                self.unpriced |= spent.unpriced
                self.session.context.budgets.add_spent(spending_scopes(self.session.worker), spent)
            answered = _describe_answer(self.session, message)
            self.answers += 1
            self.usage = sum_usage((self.usage, answered.usage))
            self.session.context.ledger.note(answered)
        elif message["event"] == "denied":
            self.session.context.ledger.note(_describe_denial(self.session, message))

    def merge_usage(self, client_usage: Mapping[str, float]) -> tuple[Mapping[str, float], tuple[str, ...]]:
        """Return the usage that counts, the one on the wire, and notes on where the client's own count differs."""
        if self.gateway is None or not self.answers:
            return client_usage, ()
        names = sorted(self.session.context.mask.text(ascii(name)[1:-1]) for name in self.unpriced)
        unpriced = (f"{name} has no price in the table of {table_date()}: its cost is unknown" for name in names)
        usage = {**client_usage, **self.usage}
        if self.unpriced and "cost_usd" not in self.usage:
            usage.pop("cost_usd", None)
        return usage, (*_differences(client_usage, self.usage), *unpriced)


def _proxy_variables(access: GatewayAccess) -> dict[str, str]:
    """Name the proxy as programs read it, in small letters and in capitals; loopback is the sandbox's own."""
    own = "localhost,127.0.0.1,::1"
    named = {"http_proxy": access.proxy, "https_proxy": access.proxy, "all_proxy": access.proxy, "no_proxy": own}
    return {**named, **{name.upper(): value for name, value in named.items()}}


def _describe_denial(session: Session, message: Message) -> PermissionDecided:
    """Describe a host that was refused, with the entry of `hosts` that would allow it."""
    place = message["host"] if message["port"] is None else f"{message['host']}:{message['port']}"
    rule = f"to allow it, add `hosts: [{message['rule']}]`" if message["rule"] else "`hosts` cannot allow it"
    return PermissionDecided(
        run=session.context.run,
        session=session.id,
        subject=session.context.mask.text(f"host {place} {message['why']}"),
        rule=rule,
        allowed=False,
    )


def _describe_answer(session: Session, message: Message) -> ModelAnswered:
    used = message["usage"] or {}
    cached = used.get("cached_input", 0)
    read = used.get("input", 0) + cached + used.get("cache_write", 0) + used.get("cache_write_1h", 0)
    usage: dict[str, float] = {}
    if used:
        usage = {"input_tokens": read, "cached_input_tokens": cached, "output_tokens": used.get("output", 0)}
    spent = message["spent"]
    if spent is not None and not spent["unpriced"]:
        usage["cost_usd"] = float(spent["usd"])
    return ModelAnswered(
        run=session.context.run,
        session=session.id,
        upstream=message["upstream"],
        model=session.context.mask.text(used.get("model", "")),
        status=message["status"],
        usage=usage,
        seconds=message["seconds"],
        first_token_seconds=message["first_token_seconds"],
        retries=message["retries"],
        waited_seconds=message["waited_seconds"],
        error=session.context.mask.text(message["error"]),
    )


def _differences(client: Mapping[str, float], wire: Mapping[str, float]) -> Iterator[str]:
    for name in ("input_tokens", "output_tokens"):
        said, counted = client.get(name), wire.get(name, 0)
        if said is not None and abs(said - counted) > NOTICEABLE * max(said, counted):
            words = name.replace("_", " ")
            yield f"its client counted {said:.0f} {words}, and the gateway {counted:.0f}, which counts"


def spending_scopes(worker: WorkerSpec) -> tuple[str, ...]:
    """Name what the spending of a session counts towards."""
    named = (scope for scope in worker.task.budgets if ":" in scope)  # of a persona, or of a call of a program
    own = ("run", f"step:{worker.step}", *named, f"session:{worker.session}")
    return tuple(dict.fromkeys((*own, *worker.charged)))


def _session_budgets(context: RunContext, worker: WorkerSpec) -> list[ScopedBudget]:
    """Hold what the task of a session may spend, and return every budget that counts for it."""
    book, scopes = context.budgets, spending_scopes(worker)
    for name, limit in worker.task.budgets.items():
        scope = next(scope for scope in scopes if scope == name or scope.startswith(f"{name}:"))
        book.add(ScopedBudget(scope=scope, limit=limit))
    return book.budgets(scopes)


def _session_recording(context: RunContext, worker: WorkerSpec) -> Recording | None:
    """Say where the session is recorded, by a name that it has in every run of the same plan."""
    if context.recording is None:
        return None
    home = str(context.repository.home)
    literals = {
        NOT_PLAIN.sub("-", home): "<repository>",  # as clients name folders of their own after it
        home: "<repository>",
        context.run: "<run>",
        worker.session: "<session>",
        worker.branch: "<branch>",
    }
    secrets = {name: value for values in worker.task.secret_values for name, value in values.items()}
    return replace(context.recording, key=worker.key, literals=literals, secrets=secrets)


def session_order(context: RunContext, worker: WorkerSpec, *, key: str = "") -> SessionOrder:
    """Return what the gateway lets a session do; `without_keys` of it may go to the machine of its sandbox."""
    budgets = _session_budgets(context, worker)
    return SessionOrder(
        session=f"{worker.session}-{key}" if key else worker.session,
        run=context.run,
        step=worker.step,
        upstreams=session_upstreams(context.upstreams, worker.task, worker.adapter.client, context.environ),
        hosts=worker.task.permitted.hosts or (),
        scopes=spending_scopes(worker),
        budgets=tuple(budget.document() for budget in budgets),
        grants=worker.task.permitted.provider_tools or (),
        recording=_session_recording(context, worker),
    )


@contextlib.asynccontextmanager
async def open_model(session: Session, network: Network, *, key: str = "") -> AsyncIterator[ModelAccess]:
    """Let the programs of a session ask its models, if it is on the gateway.

    *key* tells several of them apart that run in one session at a time.
    """
    context, worker = session.context, session.worker
    model = ModelAccess(session, network)
    services, model.talk = talk_services(session)
    if context.gateway is None:
        yield model
    elif NETWORKS[network].has_listener:
        order = session_order(context, worker, key=key)
        if (reached := context.budgets.find_reached(order.scopes)) is not None:
            model.why_stopped = reached.why_stopped
        async with context.gateway.hold_session(order, model.note_message, services) as held:
            model.gateway = model.services = held
            yield model
    elif services:
        async with context.gateway.hold_services(worker.session, services) as served:
            model.services = served
            yield model
    else:
        yield model
