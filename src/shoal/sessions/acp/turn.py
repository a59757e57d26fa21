"""One turn with an agent, through the protocol's SDK: initialize, session, model and mode, prompt."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic import ValidationError

from shoal import __version__
from shoal.adapters.acp import CLIENT, describe_agent
from shoal.adapters.events import LONGEST, explain_failure, number, words
from shoal.errors import Unavailable
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import sum_usage
from shoal.model.talk import TalkAccess
from shoal.sessions.acp.wire import AcpWire

try:
    import acp
    from acp import schema
    from acp.client.connection import ClientSideConnection
except ImportError as missing:
    raise Unavailable(
        "the adapter acp", "agent-client-protocol is not installed", "run: pip install 'shoal[acp]'"
    ) from missing

NOT_LOGGED_IN = -32000
ASKING = ("approve", "default", "ask")
"""The modes in which agents ask before they use a tool."""
APPENDS = ("claude-agent-acp", "claude-code-acp")
"""Agents that accept an addition to their system prompt in a new session."""
MOST_OFFERED = 20
ENDED = "end_turn"
Question = Mapping[str, object]
_Opened = schema.NewSessionResponse | schema.LoadSessionResponse


class TurnRefused(Exception):
    """The agent cannot or will not do what was asked; the message says why."""


class ConnectionLost(Exception):
    """The connection to the agent is closed in either direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnAnswer:
    """How the turn ended, and its usage."""

    stop: str
    usage: Mapping[str, float]


class AcpTurn:
    """A turn; *may* answers the agent's permission requests, and *began* receives its name and model.

    *next_message* returns messages that a person sent meanwhile; each is a turn of its own in the same session.
    """

    def __init__(
        self,
        task: ResolvedTask,
        cwd: str,
        *,
        has_rules: bool,
        may: Callable[[Question], bool | None],
        began: Callable[[str], None],
        conversation: str | None = None,
        next_message: Callable[[], str | None] = lambda: None,
        talk: TalkAccess | None = None,
    ) -> None:
        self._servers: list[Any] = list(_talk_servers(talk))
        self._conversation = conversation
        self._can_load = False
        self.is_loading = False
        """Whether the agent is replaying the history of a session that it continues."""
        self._task = task
        self._cwd = cwd
        self._has_rules = has_rules
        self._may = may
        self._began = began
        self._next_message = next_message
        self._agent: ClientSideConnection | None = None
        self.session = ""

    async def run(self, wire: AcpWire) -> TurnAnswer:
        """Run the turn; raises `TurnRefused` or `ConnectionLost`."""
        # We offer permissions only: the agent gets neither our files nor our terminals
        self._agent = acp.connect_to_agent(cast("acp.Client", _Client(self._may)), wire)
        try:
            return await self._steps(self._agent)
        except acp.RequestError as error:
            raise TurnRefused(_explain_failure(error)) from None
        except ValidationError as error:
            raise TurnRefused(f"its answer does not follow the protocol: {one_line(str(error))}") from None
        except OSError:
            raise ConnectionLost from None
        finally:
            await self._agent.close()

    async def cancel(self) -> None:
        """Ask the agent to end the turn; raises OSError if it cannot be reached."""
        if self._agent is not None and self.session:
            await self._agent.cancel(session_id=self.session)

    async def _steps(self, agent: ClientSideConnection) -> TurnAnswer:
        name = await self._hello(agent)
        is_appended = name.endswith(APPENDS)
        # the SDK takes additional fields of a session as keyword arguments
        extras: dict[str, Any] = {"systemPrompt": {"append": self._task.system_prompt}} if is_appended else {}
        session: _Opened
        if self._conversation is None:
            session = await agent.new_session(cwd=self._cwd, mcp_servers=self._servers, **extras)
            self.session = session.session_id
        else:
            session = await self._load(agent, self._conversation)
        self._began(" ".join(filter(None, (name, await self._model(agent, session)))))
        if self._has_rules:
            await self._mode(agent, session)
        answer = await self._prompt(agent, _prompt(self._task, is_appended=is_appended))
        while answer.stop == ENDED and (message := self._next_message()) is not None:
            following = await self._prompt(agent, message)
            answer = replace(following, usage=sum_usage((answer.usage, following.usage)))
        return answer

    async def _prompt(self, agent: ClientSideConnection, text: str) -> TurnAnswer:
        ended = await agent.prompt(session_id=self.session, prompt=cast("Any", [acp.text_block(text)]))
        return TurnAnswer(stop=ended.stop_reason, usage=_usage(ended.usage))

    async def _load(self, agent: ClientSideConnection, conversation: str) -> schema.LoadSessionResponse:
        if not self._can_load:
            raise TurnRefused("it cannot load a session")
        self.is_loading = True
        loaded = await agent.load_session(cwd=self._cwd, session_id=conversation, mcp_servers=self._servers)
        self.is_loading = False
        self.session = conversation
        return loaded

    async def _hello(self, agent: ClientSideConnection) -> str:
        can = schema.ClientCapabilities(
            fs=schema.FileSystemCapabilities(read_text_file=False, write_text_file=False), terminal=False
        )
        us = schema.Implementation(name="shoal", version=__version__)
        hello = await agent.initialize(acp.PROTOCOL_VERSION, client_capabilities=can, client_info=us)
        if hello.protocol_version != acp.PROTOCOL_VERSION:
            theirs, ours = hello.protocol_version, acp.PROTOCOL_VERSION
            raise TurnRefused(f"it uses version {theirs} of the Agent Client Protocol, but Shoal uses version {ours}")
        self._can_load = bool(hello.agent_capabilities and hello.agent_capabilities.load_session)
        return hello.agent_info.name[:100] if hello.agent_info else ""

    async def _model(self, agent: ClientSideConnection, session: _Opened) -> str:
        """Set the requested model, and return which one is in use."""
        option = next(
            (setting for setting in session.config_options or () if "model" in (setting.category, setting.id)), None
        )
        asked = self._task.agent.model
        if asked is None:
            return words(option.current_value)[:100] if option else ""
        if option is None:
            raise TurnRefused(
                f"its model cannot be set to {asked!r} by the protocol; name it in its command or its `env`"
            )
        try:
            await agent.set_config_option(option.id, self.session, asked)
        except acp.RequestError as error:
            offered = ", ".join(_values(option)[:MOST_OFFERED])
            raise TurnRefused(
                f"its model cannot be set to {asked!r}: {_error_text(error)}; it offers {offered}"
            ) from None
        return asked

    async def _mode(self, agent: ClientSideConnection, session: _Opened) -> None:
        """Switch to a mode in which it asks, if it has one: our answers enforce the rules."""
        modes = session.modes
        if modes is None or modes.current_mode_id in ASKING:
            return
        offered = {mode.id for mode in modes.available_modes}
        if mode := next((name for name in ASKING if name in offered), None):
            await agent.set_session_mode(session_id=self.session, mode_id=mode)


@dataclass(frozen=True, slots=True)
class _Client:
    """Handles the agent's requests for the SDK; an option is chosen by kind, because ids differ between agents."""

    may: Callable[[Question], bool | None]

    async def request_permission(
        self, session_id: str, tool_call: schema.ToolCallUpdate, options: list[schema.PermissionOption], **_: object
    ) -> schema.RequestPermissionResponse:
        allowed = self.may(tool_call.model_dump(mode="json", by_alias=True, exclude_none=True))
        kinds = {None: (), True: ("allow_once", "allow_always"), False: ("reject_once", "reject_always")}[allowed]
        chosen = next((choice for kind in kinds for choice in options if choice.kind == kind), None)
        if chosen is None:
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        picked = schema.AllowedOutcome(outcome="selected", option_id=chosen.option_id)
        return schema.RequestPermissionResponse(outcome=picked)


def _prompt(task: ResolvedTask, *, is_appended: bool) -> str:
    """Put the system prompt before the task if there is no better way: the protocol has none."""
    system = task.system_prompt.strip()
    if not system or is_appended or describe_agent(task.agent.command).system_prompt:
        return task.prompt
    return f"# Your instructions, which take precedence over the task\n\n{system}\n\n# Your task\n\n{task.prompt}"


def _usage(used: schema.Usage | None) -> dict[str, float]:
    if used is None:
        return {}
    read = map(number, (used.input_tokens, used.cached_read_tokens, used.cached_write_tokens))
    return {"input_tokens": sum(read), "output_tokens": number(used.output_tokens)}


def _values(option: schema.SessionConfigOptionSelect | schema.SessionConfigOptionBoolean) -> list[str]:
    listed = option.options if isinstance(option, schema.SessionConfigOptionSelect) else []
    groups = [entry.options if isinstance(entry, schema.SessionConfigSelectGroup) else [entry] for entry in listed]
    return [entry.value for group in groups for entry in group]


def _explain_failure(error: acp.RequestError) -> str:
    if error.code == NOT_LOGGED_IN:
        return f"it is not logged in: {_error_text(error)}; {CLIENT.login}"
    return explain_failure(_error_text(error), CLIENT.login)


def one_line(text: str) -> str:
    """Return the beginning of *text* on one line."""
    return " ".join(text.split())[:LONGEST]


def _error_text(error: acp.RequestError) -> str:
    """Return an error's message and its details."""
    match error.data:
        case {"details": str(more)} | {"message": str(more)} | str(more):
            return one_line(f"{error} ({more})")
    return one_line(str(error))


def _talk_servers(access: TalkAccess | None) -> Iterator[schema.McpServerStdio]:
    """Name the server of an agent that may talk, by a command, which every agent takes."""
    if access is not None:
        env = {"SHOAL_MCP_URL": access.url, "SHOAL_MCP_TOKEN": access.token}
        variables = [schema.EnvVariable(name=name, value=value) for name, value in env.items()]
        yield schema.McpServerStdio(name="shoal", command=access.program, args=["--stdio"], env=variables)
