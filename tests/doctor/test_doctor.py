"""The doctor's attacks must be able to succeed: without a sandbox, and in sandboxes with one hole each."""

import contextlib
import os
import shlex
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from shoal.doctor.escapes import (
    BROKEN,
    ESCAPES,
    KNOWN_GAP,
    check_gateway,
    check_host_network,
    check_sandbox,
    find_sandbox,
    run_attacker,
    try_escapes,
)
from shoal.doctor.host import clients, room, surroundings
from shoal.doctor.limit_breaches import BreachEnd, breach_limits, is_throttled
from shoal.doctor.targets import open_targets, running, wait_until_gone
from shoal.errors import Unavailable
from shoal.limits.kind import Enforcer, LimitGroup
from shoal.limits.polling import Polling
from shoal.model.command import Command
from shoal.model.diagnosis import Diagnosis, Finding
from shoal.model.limits import ResourceLimits
from shoal.model.policy import Network, Policy
from shoal.runs.context import open_run
from shoal.runs.request import RunRequest
from shoal.sandboxes.bubblewrap import ABSTRACT
from shoal.sandboxes.kind import SHARED_KERNEL, Sandbox, ready_line
from shoal.sessions.agent_process import Ending
from shoal.sessions.clients import check_clients
from shoal.sessions.context import RunContext
from shoal.workspaces.mount import list_mounts
from tests.acting import fingerprint

EVERY = {one.name for one in ESCAPES}
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")  # where it is on, nobody but root traces a parent
TRACING = {"tracing"} if YAMA.exists() and YAMA.read_text().strip() != "0" else set()
BEYOND_A_USER = set() if os.geteuid() == 0 else {"mounts", *TRACING}


@contextlib.asynccontextmanager
async def on(repo: Path, sandbox: str = "bubblewrap") -> AsyncIterator[RunContext]:
    request = RunRequest(folder=repo, environ=os.environ, sandbox=sandbox, strategy="worktree", grace=0.5)
    async with open_run(request) as opened:
        yield replace(opened.context, cleanup=False)


def open_ways(findings: tuple[Finding, ...]) -> set[str]:
    return {one.name for one in findings if one.held is False}


def finding(findings: tuple[Finding, ...], name: str) -> Finding:
    return next(one for one in findings if one.name == name)


@dataclass(frozen=True)
class Weakened:
    """A real sandbox with a wrong policy."""

    wall: Sandbox
    weaker: Callable[[Policy], Policy]
    name: str = "bubblewrap"
    confines: bool = True
    has_gaps_offline: bool = False
    mounts: bool = True
    can_listen: bool = False
    gaps: tuple[str, ...] = ()
    version: str = "1"
    known_escapes: frozenset[str] = frozenset()

    def wrap(self, command: Command, policy: Policy) -> Command:
        return self.wall.wrap(command, self.weaker(policy))


@dataclass(frozen=True)
class Shell:
    """A sandbox that only claims to work, with the host's environment, and that ends no survivors."""

    env: bool = False
    name: str = "shell"
    confines: bool = False
    has_gaps_offline: bool = False
    mounts: bool = False
    can_listen: bool = False
    gaps: tuple[str, ...] = ()
    version: str = "1"
    known_escapes: frozenset[str] = frozenset()

    def wrap(self, command: Command, policy: Policy) -> Command:
        line = shlex.quote(ready_line(policy.token).decode())
        words = ("/bin/sh", "-c", f'printf %s {line} >&2; exec "$@"', "sh", *command.argv)
        env = {**os.environ, **command.env} if self.env else command.env
        return Command(argv=words, cwd=command.cwd, env=env, stdin=command.stdin)


async def test_the_default_wall_is_not_got_out_of(repo: Path, tmp_path: Path) -> None:
    before = fingerprint(repo)

    async with on(repo) as context:
        found = await try_escapes(context, tmp_path / "b", needed=True)

    assert open_ways(found) == set()
    assert {one.name for one in found} == EVERY
    assert all(one.needed and not one.remedy for one in found)
    assert fingerprint(repo) == before


async def test_the_fallback_has_only_the_gaps_it_is_known_for(repo: Path, tmp_path: Path) -> None:
    async with on(repo, "landlock") as context:
        tried = await check_sandbox(context, "landlock", context.sandbox, tmp_path / "b", needed=False)

    assert open_ways(tried.findings) == {"processes"}
    assert finding(tried.findings, "processes").remedy == KNOWN_GAP
    assert tried.stood
    assert {one.result for one in tried.findings if one.name == "not held"} == {*context.sandbox.gaps, *SHARED_KERNEL}


async def test_without_a_wall_every_escape_succeeds_but_that_of_survivors(repo: Path, tmp_path: Path) -> None:
    """So each of them can fail; what is left running is ended even without a sandbox."""
    async with on(repo, "none") as context:
        found = await try_escapes(context, tmp_path / "b", needed=True)

    assert open_ways(found) == EVERY - {"survivors"} - BEYOND_A_USER, found
    assert {one.remedy for one in found if not one.held} == {BROKEN}
    assert not Diagnosis(findings=found).holds


async def test_what_an_attacker_did_outside_is_undone(repo: Path, tmp_path: Path) -> None:
    async with on(repo, "none") as context:
        async with open_targets(tmp_path / "b", context.repository.git, os.environ) as bait:
            outcome = await run_attacker(context, bait, ("write", "mount"), Network.NONE)
            written = [path for path in bait.canaries if path.exists()]

        assert len(written) >= 3
        assert ("mount" in outcome.seen) is (os.geteuid() == 0)
        assert [path for path in bait.canaries if path.exists()] == []
        assert [path for path in list_mounts(repo) if path.name == "mounted"] == []


@pytest.mark.parametrize(
    ("weaker", "opened"),
    [
        (lambda bait: lambda policy: replace(policy, network=Network.HOST), {"loopback"}),
        (lambda bait: lambda policy: replace(policy, read=(*policy.read, bait / "secret")), {"read"}),
        (lambda bait: lambda policy: replace(policy, read=(*policy.read, bait)), {"read", "sockets"}),
        (lambda bait: lambda policy: replace(policy, write=(*policy.write, bait)), {"read", "write", "sockets"}),
    ],
    ids=["network", "a file", "a folder", "a folder to write"],
)
async def test_a_wall_with_one_hole_is_found_out(
    repo: Path, tmp_path: Path, weaker: Callable[[Path], Callable[[Policy], Policy]], opened: set[str]
) -> None:
    bait = tmp_path / "b"

    async with on(repo) as context:
        wall = Weakened(context.sandbox, weaker(bait))
        found = await try_escapes(replace(context, sandbox=wall), bait, needed=True)

    assert open_ways(found) == opened, found


async def test_who_survives_its_box_is_found_out_and_ended(repo: Path, tmp_path: Path) -> None:
    async with on(repo, "none") as context, open_targets(tmp_path / "b", context.repository.git, os.environ) as bait:
        outcome = await run_attacker(replace(context, sandbox=Shell()), bait, ("linger",), Network.NONE)
        left = running(bait.mark)

    assert "linger" in outcome.seen
    assert len(left) == 1
    assert await wait_until_gone(bait.mark)


async def test_variables_that_were_handed_on_are_named(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "precious")

    async with on(repo, "none") as context:
        context = replace(context, environ=dict(os.environ), sandbox=Shell(env=True))
        found = await try_escapes(context, tmp_path / "b", needed=True)

    assert finding(found, "environment").held is False
    assert "precious" not in repr(found)


async def test_a_wall_that_does_not_come_up_holds_nothing(repo: Path, tmp_path: Path) -> None:
    """An attacker that never ran has proved nothing."""
    async with on(repo) as context:
        wall = Weakened(context.sandbox, lambda policy: replace(policy, token="another"))
        found = await try_escapes(replace(context, sandbox=wall), tmp_path / "b", needed=True)

    assert open_ways(found) == EVERY
    assert "wall" in found[0].result


async def test_a_wall_that_cannot_be_had_says_what_to_install(repo: Path, tmp_path: Path) -> None:
    refused = Unavailable("the bubblewrap sandbox", "there is no `bwrap` on PATH", "install it")

    async with on(repo, "none") as context:
        tried = await check_sandbox(context, "bubblewrap", refused, tmp_path / "b", needed=True)

    assert (tried.stood, len(tried.findings)) == (False, 1)
    assert (tried.findings[0].held, tried.findings[0].remedy) == (False, "install it")


async def test_the_hosts_network_reaches_listeners_and_no_abstract_sockets(repo: Path, tmp_path: Path) -> None:
    async with on(repo) as context:
        found = await check_host_network(context, tmp_path / "b")

    assert finding(found, "host").held is True
    assert finding(found, "abstract").held is (ABSTRACT not in context.sandbox.gaps), found


async def test_the_gateway_listens_and_leads_nowhere_else(repo: Path, tmp_path: Path) -> None:
    async with on(repo) as context:
        found = await check_gateway(context, tmp_path / "b")

    assert finding(found, "gateway").held is True, found


async def test_each_limit_is_breached_alone_and_named(repo: Path) -> None:
    async with on(repo) as context:
        found = await breach_limits(context)

    held = {one.name: one.held for one in found if one.name not in ("enforcement", "not held")}
    cpu = held.pop("cpu")
    assert held == dict.fromkeys(("memory", "pids", "disk", "time", "neighbour"), True), found
    assert cpu is not False, found
    assert cpu is None or "cpu" in context.enforcer.holds
    assert cpu or "too busy" in finding(found, "cpu").result or "cpu" not in context.enforcer.holds
    assert {one.result for one in found if one.name == "not held"} == set(context.enforcer.gaps)
    assert f"{context.enforcer.name} holds" in finding(found, "enforcement").result


class Lax:
    """Enforcement that promises everything and looks away."""

    name = "lax"
    can_freeze = False
    holds = holds_fleet = frozenset({"memory", "cpu", "pids"})
    gaps: tuple[str, ...] = ()
    version: str = "1"
    known_escapes: frozenset[str] = frozenset()
    folders: tuple[Path, ...] = ()

    def group(self, name: str, limits: ResourceLimits) -> AbstractContextManager[LimitGroup]:
        return _unbound(name)

    def hold_shared(self) -> contextlib.AbstractContextManager[None]:
        """Hold nothing."""
        return contextlib.nullcontext()

    def sweep(self) -> None:
        """Leave nothing."""


@contextlib.contextmanager
def _unbound(name: str) -> Iterator[LimitGroup]:
    with Polling().group(name, ResourceLimits(memory_mb=None, cpu_percent=None, pids=None)) as group:
        yield group


@pytest.mark.parametrize(
    ("percent", "free", "held"), [(21, 95, True), (95, 97, False), (36, 99, False), (0, 99, False), (13, 15, None)]
)
def test_a_share_is_told_from_a_busy_machine(percent: float, free: float, held: bool | None) -> None:
    spinner, other = (
        BreachEnd(ending=Ending.TIME, limit="time", seconds=1, cpu_seconds=one / 100) for one in (percent, free)
    )

    assert is_throttled(spinner, other) is held


@pytest.mark.deep
async def test_limits_that_nobody_holds_are_found_out(repo: Path) -> None:
    lax: Enforcer = Lax()

    async with on(repo) as context:
        found = await breach_limits(replace(context, enforcer=lax))

    assert {"memory", "pids"} <= open_ways(found)
    assert not Diagnosis(findings=found).holds
    assert finding(found, "time").held


async def test_doctor_and_agents_give_the_same_command_to_install(tmp_path: Path) -> None:
    found = {one.name: one.remedy for one in await clients("/nonexistent", tmp_path / "home")}
    standing = await check_clients(None, {"PATH": "/nonexistent", "HOME": str(tmp_path)})

    assert found == {one.agent: f"`{one.client.install}`" for one in standing if one.agent in found}
    assert "goose" in found


async def test_clients_are_asked_with_a_cleared_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "precious")
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in {"claude": 'echo "9.9 $MY_TOKEN${HOME##*/}"', "codex": "sleep 60", "goose": "exit 3"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    found = {one.name: one for one in await clients(f"{folder}:/usr/bin:/bin", tmp_path / "home")}

    assert found["claude"].held is True
    assert found["claude"].result == f"9.9 home, {folder}/claude"
    assert (found["codex"].held, "within 3 s" in found["codex"].result) == (False, True)
    assert (found["goose"].held, "ended with 3" in found["goose"].result) == (False, True)
    assert all("install" in one.remedy for one in found.values() if not one.held)


async def test_a_host_is_looked_at_without_a_repository(tmp_path: Path) -> None:
    found = {one.name: one for one in (*await surroundings(), *await room(tmp_path / "nowhere" / "yet", os.environ))}

    assert found["git"].held is True
    assert f"of {tmp_path}" in found["disk"].tried
    assert not (tmp_path / "nowhere").exists()


async def test_a_sandbox_is_found_by_the_given_path_or_its_absence_explained() -> None:
    found = await find_sandbox("bubblewrap", os.environ)
    missing = await find_sandbox("bubblewrap", {"PATH": "/nowhere"})

    assert not isinstance(found, Unavailable)
    assert found.name == "bubblewrap"
    assert isinstance(missing, Unavailable)
    assert "PATH" in missing.why
