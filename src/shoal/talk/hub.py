"""The agents of a run that may talk: who is there, by which token, and the messages between them."""

import asyncio
import contextlib
import secrets
import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shoal.model.masking import Mask
from shoal.model.shared_events import SharedEvent
from shoal.model.talk import ChildSpawned, MessageSent, MessagesTaken, TalkEvent, TalkGrant, TalkKind, TalkRefused
from shoal.store.ledger import Ledger
from shoal.store.notes import NoteStore
from shoal.talk.claim_book import ClaimBook
from shoal.talk.kind import CallRefused, ChildOrder, Children, Letter, Postbox, Queues
from shoal.talk.quote import escape, quote

MOST_TEXT_CHARS = 16_000
MOST_WAITING = 1000
MOST_SENT = 50_000
"""Messages of one session."""
MOST_HOPS = 32
MOST_KNOWN = 10_000
"""Messages that can still be replied to."""
PAIR_BURST, PAIR_EACH_SECOND = 200.0, 50.0
REFUSAL_SECONDS = 1.0
"""Refusals of one session are recorded no more often than that."""
MASKED_CHARS = 500


@dataclass(slots=True)
class Peer:
    """A running agent that may talk."""

    name: str
    session: str
    grant: TalkGrant
    postbox: Postbox
    children: Children | None = None
    task: str = ""
    """The beginning of its task."""
    token: str = field(default_factory=lambda: f"talk-{secrets.token_hex(24)}", repr=False)
    base: str = ""
    """The commit that it started from."""
    notes: int = 0
    """How many notes it has written."""
    hops: int = 0
    """How many messages led to what it does now."""
    sent: int = 0


@dataclass(slots=True)
class _Rate:
    """What one agent may still send to another; it grows with time."""

    left: float = PAIR_BURST
    at: float = field(default_factory=time.monotonic)

    def take(self) -> bool:
        now = time.monotonic()
        self.left = min(PAIR_BURST, self.left + (now - self.at) * PAIR_EACH_SECOND)
        self.at = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


@dataclass(slots=True)
class _Refusals:
    at: float = float("-inf")
    left_out: int = 0


class TalkHub:
    """Passes messages between the agents of one run, and records them before they arrive."""

    def __init__(self, run: str, ledger: Ledger, mask: Mask, notes: NoteStore | None = None) -> None:
        self.run = run
        self._ledger = ledger
        self.mask = mask
        """Of the secrets known so far."""
        self.notes = notes
        self.claims = ClaimBook()
        self.queues: Queues | None = None
        """The queues of tasks, once the run has them."""
        self._peers: dict[str, Peer] = {}
        self._sessions: dict[str, Peer] = {}
        self._numbers: defaultdict[str, int] = defaultdict(int)
        self._rates: defaultdict[tuple[str, str], _Rate] = defaultdict(_Rate)
        self._known: OrderedDict[str, MessageSent] = OrderedDict()
        self._answers: dict[str, asyncio.Future[MessageSent]] = {}
        self._asking: dict[str, str] = {}
        self._refusals: defaultdict[str, _Refusals] = defaultdict(_Refusals)
        self._undelivered: defaultdict[str, list[MessageSent]] = defaultdict(list)
        self._children: defaultdict[str, list[ChildSpawned]] = defaultdict(list)
        self._adopted: defaultdict[str, list[ChildSpawned]] = defaultdict(list)

    def restore(self, events: Sequence[TalkEvent]) -> None:
        """Continue after what was recorded before the run was resumed; what had not arrived arrives later."""
        open_: dict[str, MessageSent] = {}
        for event in events:
            match event:
                case MessageSent():
                    self._numbers[event.sender] += 1
                    self._remember(event)
                    open_[event.message] = event
                case MessagesTaken(messages=messages):
                    for name in messages:
                        open_.pop(name, None)
                case ChildSpawned(parent=parent):
                    self._children[parent].append(event)
                case _:
                    pass
        for message in open_.values():
            self._undelivered[message.recipient].append(message)

    def adopt_children(self, parent: str) -> Sequence[ChildSpawned]:
        """Return once the sessions that an agent had started before the run was resumed."""
        found = self._children.pop(parent, [])
        self._adopted[parent].extend(found)
        return found

    def claim_child(self, parent: str, order: ChildOrder) -> str | None:
        """Return the name of an adopted session with the same task, each once; `None` if there is none."""
        wanted = (self.mask.text(order.task), order.agent, order.files)
        for spawned in self._adopted[parent]:
            if (spawned.task, spawned.agent, spawned.files) == wanted:
                self._adopted[parent].remove(spawned)
                return spawned.child
        return None

    @contextlib.contextmanager
    def hold_peer(self, peer: Peer) -> Iterator[Peer]:
        """Let others talk to *peer* while the block runs."""
        self._peers[peer.name] = self._sessions[peer.session] = peer
        for message in self._undelivered.pop(peer.name, ()):
            peer.postbox.put(_letter(message))
        try:
            yield peer
        finally:
            if self._peers.get(peer.name) is peer:
                del self._peers[peer.name]
            self._sessions.pop(peer.session, None)
            self._refusals.pop(peer.session, None)
            self.claims.remove(peer.session)

    def find_session(self, session: str) -> Peer | None:
        """Return the agent of a session, if it may talk."""
        return self._sessions.get(session)

    @property
    def peers(self) -> list[Peer]:
        """Return all agents that are there, in order of their start."""
        return list(self._peers.values())

    def is_token(self, token: str) -> bool:
        """Return whether *token* is that of any agent here."""
        return any(secrets.compare_digest(peer.token.encode(), token.encode()) for peer in self._peers.values())

    async def send(
        self, sender: Peer, to: str, text: str, *, kind: TalkKind = TalkKind.SEND, answers: str = ""
    ) -> MessageSent:
        """Record a message and put it into the postbox of *to*; raises `CallRefused` if it may not be sent."""
        recipient = self._recipient(sender, to)
        hops = self._count_hops(sender, answers)
        self._assert_sendable(sender, recipient, text, hops)
        message = self._number(sender, to, text, kind, answers, hops)
        await self._ledger.append(message)
        if answers and (waiter := self._answers.get(answers)) is not None and not waiter.done():
            waiter.set_result(message)
            self.note_taken(recipient, (message.message,))
        elif recipient.postbox.can_receive:
            recipient.postbox.put(_letter(message))
        return message

    async def ask(self, sender: Peer, to: str, text: str, seconds: float) -> MessageSent | None:
        """Send a question and wait for its answer; `None` if none came in time."""
        self._assert_no_ring(sender.name, to)
        loop = asyncio.get_running_loop()
        message = await self.send(sender, to, text, kind=TalkKind.ASK)
        waiter: asyncio.Future[MessageSent] = loop.create_future()
        self._answers[message.message] = waiter
        self._asking[sender.name] = to
        try:
            async with asyncio.timeout(seconds):
                return await waiter
        except TimeoutError:
            return None
        finally:
            del self._answers[message.message]
            self._asking.pop(sender.name, None)

    async def reply(self, sender: Peer, message: str, text: str) -> MessageSent:
        """Reply to a message that *sender* received."""
        known = self._known.get(message)
        if known is None or known.recipient != sender.name:
            raise CallRefused(f"you received no message {message!r:.60} that can be replied to; see `inbox`")
        return await self.send(sender, known.sender, text, kind=TalkKind.REPLY, answers=message)

    def note_taken(self, recipient: Peer, messages: Sequence[str]) -> None:
        """Record that messages were received: a resumed run does not deliver them again."""
        if messages:
            self._ledger.post(self._describe_taken(recipient, messages))

    async def record_taken(self, recipient: Peer, messages: Sequence[str]) -> None:
        """Do the same, and return after its commit."""
        await self._ledger.append(self._describe_taken(recipient, messages))

    def _describe_taken(self, recipient: Peer, messages: Sequence[str]) -> MessagesTaken:
        names = tuple(messages)
        return MessagesTaken(run=self.run, session=recipient.session, recipient=recipient.name, messages=names)

    async def record(self, event: SharedEvent) -> None:
        """Record what an agent did."""
        await self._ledger.append(event)

    def note_turn(self, session: str, messages: Sequence[str], hops: int) -> None:
        """Note that an agent begins a turn with *messages*, to which *hops* messages led."""
        if (peer := self._sessions.get(session)) is not None:
            peer.hops = hops
            self.note_taken(peer, messages)

    def note_refusal(self, peer: Peer, tool: str, why: str) -> None:
        """Record that a call was refused; of a flood, a few with their number."""
        now, known = time.monotonic(), self._refusals[peer.session]
        if now - known.at < REFUSAL_SECONDS:
            known.left_out += 1
            return
        times, known.at, known.left_out = known.left_out + 1, now, 0
        text = self.mask.text(escape(why))[:MASKED_CHARS]
        name = escape(tool)[:MASKED_CHARS]
        self._ledger.post(TalkRefused(run=self.run, session=peer.session, tool=name, why=text, times=times))

    def _recipient(self, sender: Peer, to: str) -> Peer:
        found = self._peers.get(to)
        if found is None or not found.grant.message:
            known = ", ".join(peer.name for peer in self._peers.values() if peer.grant.message and peer is not sender)
            raise CallRefused(f"no agent {to!r:.60} takes messages now; there are: {known or 'none'}")
        if found is sender:
            raise CallRefused("you cannot send messages to yourself")
        return found

    def _count_hops(self, sender: Peer, answers: str) -> int:
        known = self._known.get(answers)
        return 1 + max(sender.hops, known.hops if known is not None else 0)

    def _assert_sendable(self, sender: Peer, recipient: Peer, text: str, hops: int) -> None:
        if not text.strip():
            raise CallRefused("the message is empty")
        if len(text) > MOST_TEXT_CHARS:
            raise CallRefused(f"a message may have {MOST_TEXT_CHARS} characters, and this has {len(text)}")
        if hops > MOST_HOPS:
            raise CallRefused(f"{MOST_HOPS} messages have led to this one, each by the one before: end the exchange")
        if sender.sent >= MOST_SENT:
            raise CallRefused(f"you have sent {MOST_SENT} messages, which is the limit")
        if not recipient.postbox.can_receive:
            raise CallRefused(f"{recipient.name} has finished its work and takes no more messages")
        if recipient.postbox.waiting >= MOST_WAITING:
            raise CallRefused(f"{recipient.name} has {MOST_WAITING} messages that it has not read; try again later")
        if not self._rates[sender.name, recipient.name].take():
            most = f"{PAIR_EACH_SECOND:g} messages a second"
            raise CallRefused(f"too many messages to {recipient.name}: {most} at most; try again later")

    def _assert_no_ring(self, name: str, to: str) -> None:
        """Refuse a question to an agent that waits, itself or through others, for an answer of *name*."""
        at: str | None = to
        while (at := self._asking.get(at or "")) is not None:
            if at == name:
                raise CallRefused(f"{to} waits for an answer of yours: read your `inbox`, and `reply` first")

    def _number(self, sender: Peer, to: str, text: str, kind: TalkKind, answers: str, hops: int) -> MessageSent:
        self._numbers[sender.name] += 1
        sender.sent += 1
        message = MessageSent(
            run=self.run,
            session=sender.session,
            message=f"{sender.name}:{self._numbers[sender.name]}",
            sender=sender.name,
            recipient=to,
            text=self.mask.text(text),
            kind=kind,
            answers=answers,
            hops=hops,
        )
        self._remember(message)
        return message

    def _remember(self, message: MessageSent) -> None:
        self._known[message.message] = message
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)


def _letter(message: MessageSent) -> Letter:
    return Letter(
        message=message.message,
        sender=message.sender,
        text=quote(message),
        hops=message.hops,
    )
