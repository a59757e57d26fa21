"""Shared by the tests of clients: a task, paths, and lines as a client or a liar could print them."""

import json
from collections.abc import Iterable
from pathlib import Path

from hypothesis import strategies as st

from shoal.adapters.kind import Reader, SessionPaths
from shoal.model.activity import Activity
from shoal.model.agent import AgentSpec
from shoal.model.permissions import Permissions
from shoal.model.resolved_task import ResolvedTask

PLACE = SessionPaths(home=Path("/s/home"), inputs=Path("/s/input"), workspace=Path("/s/work"))
TYPES = [
    "init",
    "message",
    "tool_use",
    "tool_result",
    "error",
    "result",
    "text",
    "step_start",
    "step_finish",
    "session.error",
    "assistant.message",
    "assistant.turn_retry",
    "tool.execution_start",
    "tool.execution_complete",
    "model.call_start",
    "launched",
    "exit",
    "message_send",
]
KEYS = [
    "role",
    "content",
    "status",
    "stats",
    "error",
    "message",
    "output",
    "parameters",
    "tool_id",
    "data",
    "part",
    "state",
    "tokens",
    "cache",
    "input",
    "cost",
    "reason",
    "sessionID",
    "exitCode",
    "code",
    "result",
    "success",
    "event",
    "properties",
    "prompt_tokens",
    "text",
    "type",
]


def task(
    adapter: str,
    *,
    model: str | None = None,
    command: tuple[str, ...] = (),
    args: tuple[str, ...] = (),
    permissions: Permissions | None = None,
) -> ResolvedTask:
    """Make a task for an agent of this adapter."""
    spec = AgentSpec(name="x", adapter=adapter, model=model, command=command, args=args)
    return ResolvedTask(name="t", prompt="do é", agent=spec, system_prompt="be kind", permissions=permissions)


def heard(reader: Reader, lines: str) -> list[Activity]:
    """Read all lines."""
    return [one for line in lines.splitlines() for one in _listed(reader.read(line))]


def _listed(activities: Iterable[Activity]) -> list[Activity]:
    return list(activities)


def events() -> st.SearchStrategy[str]:
    """Give lines that look like events of some client, with anything at the places of their values, or any text."""
    leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(TYPES)
    value = st.recursive(
        leaf,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
        max_leaves=12,
    )
    kind = st.sampled_from(TYPES)
    told = st.dictionaries(st.sampled_from(KEYS), value, max_size=6)
    objects = st.builds(lambda one, rest: {"type": one, "event": one, **rest}, kind, told).map(json.dumps)
    return objects | st.text() | value.map(json.dumps)
