"""The tools for messages between the agents of a run."""

from typing import Annotated

from shoal.model.talk import TalkKind
from shoal.talk.kind import CallRefused
from shoal.talk.quote import escape, quote
from shoal.talk.tool import Caller, page

MOST_SECONDS = 600.0
MOST_AT_ONCE = 50
TASK_CHARS = 120

To = Annotated[str, "The name of an agent, as `agents` lists it."]
Text = Annotated[str, "What to say, at most 16000 characters."]


async def agents(caller: Caller) -> str:
    """List the agents of this run that work now, with their tasks; messages go to those marked `messages`."""
    lines = [f"You are {caller.peer.name}."]
    for peer in caller.hub.peers:
        if peer is not caller.peer:
            takes = "messages" if peer.grant.message and peer.postbox.can_receive else "no messages"
            lines.append(f"{peer.name}: running, {takes}; its task: {escape(peer.task)[:TASK_CHARS]}")
    if len(lines) == 1:
        lines.append("No other agent that may talk works now.")
    return page("\n".join(lines))


async def send(caller: Caller, to: To, text: Text) -> str:
    """Send a message to another agent of this run. It gets it after its current turn, or by its own `inbox`."""
    message = await caller.hub.send(caller.peer, to, text)
    return f"sent as {message.message}"


async def broadcast(caller: Caller, text: Text) -> str:
    """Send a message to every agent of this run that takes messages."""
    sent, refused = [], []
    for peer in caller.hub.peers:
        if peer is caller.peer or not peer.grant.message or not peer.postbox.can_receive:
            continue
        try:
            await caller.hub.send(caller.peer, peer.name, text, kind=TalkKind.BROADCAST)
            sent.append(peer.name)
        except CallRefused as why:
            refused.append(f"{peer.name}: {why}")
    if not sent and not refused:
        raise CallRefused("no other agent takes messages now")
    return "\n".join((f"sent to {', '.join(sent) or 'nobody'}", *refused))


async def ask(
    caller: Caller,
    to: To,
    question: Annotated[str, "What you want to know, at most 16000 characters."],
    timeout: Annotated[float, "How many seconds to wait for the answer, at most 600."] = 60.0,
) -> str:
    """Ask another agent a question, and wait for its reply."""
    seconds = min(max(timeout, 0.0), MOST_SECONDS)
    answer = await caller.hub.ask(caller.peer, to, question, seconds)
    if answer is None:
        return f"{to} has not replied within {seconds:g} s; a later reply comes like any other message"
    return quote(answer)


async def reply(
    caller: Caller, message: Annotated[str, "The message that you reply to, like `plan:3`."], text: Text
) -> str:
    """Reply to a message or a question that you received."""
    sent = await caller.hub.reply(caller.peer, message, text)
    return f"sent to {sent.recipient} as {sent.message}"


async def inbox(
    caller: Caller,
    wait: Annotated[float, "How many seconds to wait if there is no message, at most 600."] = 0.0,
    most: Annotated[int, "How many messages to take, at most 50."] = 20,
) -> str:
    """Take the messages that others sent to you, oldest first; each is delivered once."""
    most = min(max(most, 1), MOST_AT_ONCE)
    letters = await caller.peer.postbox.take(most, min(max(wait, 0.0), MOST_SECONDS))
    if not letters:
        return "no messages"
    if names := [letter.message for letter in letters if letter.message]:
        await caller.hub.record_taken(caller.peer, names)
    texts = [letter.text for letter in letters]
    left = caller.peer.postbox.waiting
    return "\n\n".join((*texts, *([f"[{left} more messages: call `inbox` again]"] if left else [])))
