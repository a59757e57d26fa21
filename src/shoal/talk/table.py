"""The tools that agents can call: one line for each, with what has to be granted."""

from collections.abc import Mapping

from shoal.model.talk import TalkGrant
from shoal.talk import children, claims, messages, notes, queue
from shoal.talk.tool import Tool


def _anything(grant: TalkGrant) -> bool:
    return not grant.is_nothing


def _message(grant: TalkGrant) -> bool:
    return grant.message


def _notes(grant: TalkGrant) -> bool:
    return grant.notes


def _queue(grant: TalkGrant) -> bool:
    return bool(grant.queue)


def _spawn(grant: TalkGrant) -> bool:
    return grant.may_spawn


TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(messages.agents, _anything, is_read_only=True),
        Tool(messages.send, _message),
        Tool(messages.broadcast, _message),
        Tool(messages.ask, _message),
        Tool(messages.reply, _message),
        Tool(messages.inbox, _message),
        Tool(claims.claim, _anything),
        Tool(claims.release, _anything),
        Tool(claims.claims, _anything, is_read_only=True),
        Tool(notes.remember, _notes),
        Tool(notes.recall, _notes, is_read_only=True),
        Tool(notes.notes, _notes, is_read_only=True),
        Tool(queue.add_task, _queue),
        Tool(queue.add_tasks, _queue),
        Tool(children.spawn, _spawn),
        Tool(children.wait, _spawn),
        Tool(children.status, _spawn, is_read_only=True),
        Tool(children.diff, _spawn, is_read_only=True),
        Tool(children.merge, _spawn),
    )
}
