"""The tools with which agents say what they are about to change, so that two do not find out at the end."""

import contextlib
import time
from collections.abc import Sequence
from typing import Annotated

from shoal.model.claims import (
    MOST_CLAIMED,
    MOST_MINUTES,
    ClaimMade,
    ClaimReleased,
    ClaimState,
    clean_pattern,
)
from shoal.talk.kind import CallRefused
from shoal.talk.quote import escape
from shoal.talk.tool import Caller, page

WHY_CHARS = 300
NAMED = 20
NOTHING: list[str] = []
Files = Annotated[list[str], "Paths or patterns like `src/parser/**`, at most 50; a folder means all below it."]


async def claim(
    caller: Caller,
    files: Files,
    why: Annotated[str, "What you will do there, in a sentence."] = "",
    minutes: Annotated[int, "For how long, at most 240; it ends with your session, too."] = 30,
) -> str:
    """Say which files you are about to change. It hinders nobody, but tells you and others who else does."""
    hub, peer = caller.hub, caller.peer
    patterns = _clean(files)
    seconds = 60.0 * min(max(minutes, 1), MOST_MINUTES)
    words = escape(hub.mask.text(why))[:WHY_CHARS]
    until = time.time() + seconds
    made = [
        ClaimState(agent=peer.name, session=peer.session, pattern=hub.mask.text(pattern), why=words, until=until)
        for pattern in patterns
    ]
    found = await hub.claims.add(made)
    others = tuple(dict.fromkeys(other.agent for _, other in found))
    await hub.record(
        ClaimMade(
            run=hub.run,
            session=peer.session,
            agent=peer.name,
            patterns=tuple(each.pattern for each in made),
            why=words,
            seconds=seconds,
            others=others,
        )
    )
    for agent in others:
        await _notify(caller, agent, [(mine, other) for mine, other in found if other.agent == agent])
    done = f"claimed {', '.join(each.pattern for each in made)}, for {seconds / 60:g} minutes"
    if not found:
        return f"{done}; nobody else claims any of it"
    lines = [
        f"{other.agent} claims {other.pattern}, which overlaps {mine.pattern}{_say_why(other)}" for mine, other in found
    ]
    return page("\n".join((f"{done}, but:", *lines, "agree with them who changes what, or leave it to them")))


async def release(caller: Caller, files: Annotated[list[str], "What you claimed; nothing means all."] = NOTHING) -> str:
    """Say that you no longer change what you claimed."""
    gone = caller.hub.claims.remove(caller.peer.session, _clean(files) if files else ())
    if not gone:
        raise CallRefused("you claim nothing of that; `claims` lists what is claimed")
    await caller.hub.record(
        ClaimReleased(run=caller.hub.run, session=caller.peer.session, patterns=tuple(gone) if files else ())
    )
    return f"released {', '.join(gone)}"


async def claims(caller: Caller) -> str:
    """List which files the agents of this run are about to change."""
    lines = [f"{held.agent}: {held.pattern}{_say_why(held)}" for held in caller.hub.claims.list_held()]
    return page("\n".join(lines)) if lines else "nobody claims anything"


async def _notify(caller: Caller, agent: str, found: Sequence[tuple[ClaimState, ClaimState]]) -> None:
    """Send the other agent a message, if both may send them; else it learns of it when it claims something."""
    if not caller.peer.grant.message:
        return
    lines = [f"I claim {mine.pattern}, which overlaps your claim {other.pattern}." for mine, other in found[:NAMED]]
    why = found[0][0].why
    with contextlib.suppress(CallRefused):
        await caller.hub.send(caller.peer, agent, "\n".join((*lines, *([f"I will: {why}"] if why else ()))))


def _clean(files: Sequence[str]) -> list[str]:
    if not 0 < len(files) <= MOST_CLAIMED:
        raise CallRefused(f"name 1 to {MOST_CLAIMED} files or patterns")
    try:
        return list(dict.fromkeys(map(clean_pattern, files)))
    except ValueError as error:
        raise CallRefused(str(error)) from None


def _say_why(held: ClaimState) -> str:
    return f" (it says: {held.why})" if held.why else ""
