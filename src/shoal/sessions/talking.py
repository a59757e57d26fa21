"""A session that may talk to the others of its run: its place among them, its way out of the sandbox, its program."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.adapters.client import this_host
from shoal.errors import Unavailable
from shoal.gateway.gateway import Services
from shoal.model.policy import NETWORKS, Network
from shoal.model.resolved_task import ResolvedTask
from shoal.model.talk import TALK_PORT, TalkAccess
from shoal.sandboxes.kind import Sandbox
from shoal.sessions.context import RunContext
from shoal.sessions.session_control import AgentMessage, Inbox
from shoal.sessions.session_dir import PROGRAMS
from shoal.sessions.worker import Session, WorkerSpec
from shoal.talk.hub import Peer
from shoal.talk.kind import Children, Letter
from shoal.talk.program import interpreter_files, talk_program
from shoal.talk.server import PATH, serve_peer

PROGRAM = "shoal-talk"
TASK_CHARS = 200
GATHER_SECONDS = 0.2
"""How long a call that waits for messages goes on waiting when the first has come."""


@dataclass(frozen=True, slots=True)
class InboxPostbox:
    """The inbox of a session, in which messages of other agents wait together with those of people."""

    inbox: Inbox
    is_spoken_to: bool
    """Whether its agent gets messages between its turns, too."""

    @property
    def can_receive(self) -> bool:
        """Return whether the agent still receives messages."""
        return self.inbox.is_open if self.is_spoken_to else not self.inbox.is_closed

    @property
    def waiting(self) -> int:
        """Count the messages in it."""
        return len(self.inbox)

    def put(self, letter: Letter) -> None:
        """Append a message of an agent."""
        self.inbox.put(AgentMessage(text=letter.text, by=letter.sender, request=letter.message, hops=letter.hops))

    async def take(self, most: int, seconds: float) -> list[Letter]:
        """Remove up to *most* messages; wait up to *seconds* for the first."""
        if not len(self.inbox) and seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.inbox.wait()
                    await asyncio.sleep(GATHER_SECONDS)  # who writes once often writes twice: one call for both
        letters: list[Letter] = []
        while len(letters) < most and (message := self.inbox.first()) is not None:
            self.inbox.remove(message)
            name = message.request if message.hops else ""
            letters.append(Letter(message=name, sender=message.by, text=message.text, hops=message.hops))
        return letters


def assert_can_talk(sandbox: Sandbox, network: Network, task: ResolvedTask) -> None:
    """Refuse `talk` in a sandbox that has no network of its own to listen in."""
    if task.talk is None or task.talk.is_nothing:
        return
    if NETWORKS[network].shares_host or not sandbox.can_listen:
        why = "Shoal listens for an agent's calls in the sandbox's own network, and this one has none"
        raise Unavailable("`talk`", why, "use the bubblewrap sandbox, with `network: none` or `network: gateway`")


@contextlib.contextmanager
def hold_peer(
    context: RunContext, worker: WorkerSpec, inbox: Inbox, children: Children | None = None
) -> Iterator[None]:
    """Let the agent of *worker* talk, if it may, while the block runs."""
    grant = worker.task.talk
    if context.talk is None or grant is None or grant.is_nothing:
        yield
        return
    task = " ".join(context.mask.text(worker.task.title or worker.task.prompt).split())[:TASK_CHARS]
    peer = Peer(
        name=worker.agent_name,
        session=worker.session,
        grant=grant,
        postbox=InboxPostbox(inbox, worker.takes_messages),
        children=children,
        base=worker.base or context.base.commit,
        task=task,
    )
    with context.talk.hold_peer(peer):
        yield


def talk_files(worker: WorkerSpec) -> dict[str, str | bytes]:
    """Return the program for an agent that may talk, by its name in the inputs."""
    if worker.task.talk is None or worker.task.talk.is_nothing:
        return {}
    return {f"{PROGRAMS}{PROGRAM}": talk_program(this_host().python)}


def talk_services(session: Session) -> tuple[Services, TalkAccess | None]:
    """Return what serves the tools of the session, and how its agent reaches them; nothing if it may not talk."""
    hub = session.context.talk
    peer = None if hub is None else hub.find_session(session.id)
    if hub is None or peer is None or not session.context.sandbox.can_listen:
        return {}, None
    return {TALK_PORT: serve_peer(hub, peer)}, _make_access(session, peer)


def talk_access(session: Session) -> TalkAccess | None:
    """Return how the agent of a session reaches the tools, if it may."""
    return talk_services(session)[1]


def _make_access(session: Session, peer: Peer) -> TalkAccess:
    program = f"{session.directory.inputs}/{PROGRAMS}{PROGRAM}"
    return TalkAccess(url=f"http://127.0.0.1:{TALK_PORT}{PATH}", token=peer.token, program=program)


def talk_needs(access: TalkAccess | None) -> tuple[Path, ...]:
    """Return what a sandbox has to show for the program to run."""
    return () if access is None else interpreter_files(this_host().python)


def talk_variables(access: TalkAccess | None, env: Mapping[str, str]) -> dict[str, str]:
    """Name the tools, and put the program that calls them on the PATH."""
    if access is None:
        return {}
    path = f"{Path(access.program).parent}:{env.get('PATH', '')}".rstrip(":")
    return {"SHOAL_MCP_URL": access.url, "SHOAL_MCP_TOKEN": access.token, "PATH": path}
