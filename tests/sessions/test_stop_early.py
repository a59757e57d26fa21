"""An agent that is stopped before it has begun is given no time to stop: it could not hear that it should."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

from shoal.adapters.command import CommandAdapter as CommandAdapter
from shoal.model.command import Command
from shoal.model.policy import Policy
from shoal.proc import Stream
from shoal.runs.context import open_run
from shoal.runs.request import RunRequest
from shoal.sandboxes.kind import Sandbox
from shoal.sessions.open_session import open_session
from shoal.sessions.policy import agent_command
from shoal.sessions.sandboxed import open_sandboxed
from shoal.sessions.worker import WorkerSpec
from tests.acting import step


class Unseen:
    """A sandbox whose first line is never recognised, as if it were still being made."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.name, self.gaps, self.mounts = sandbox.name, sandbox.gaps, sandbox.mounts
        self.confines, self.has_gaps_offline = sandbox.confines, sandbox.has_gaps_offline
        self.can_listen = sandbox.can_listen
        self.version, self.known_escapes = sandbox.version, sandbox.known_escapes

    def wrap(self, command: Command, policy: Policy) -> Command:
        return self._sandbox.wrap(command, replace(policy, token="another"))


async def test_who_is_stopped_while_its_sandbox_is_made_ends_at_once(repo: Path) -> None:
    task = step("work", "trap '' TERM; sleep 600").task
    worker = WorkerSpec(step="work", index=0, count=1, task=task, adapter=CommandAdapter())
    async with (
        open_run(RunRequest(folder=repo, environ=os.environ)) as opened,
        open_session(opened.context, worker) as session,
    ):
        context = opened.context
        command, policy = agent_command(session)

        async with open_sandboxed(Unseen(context.sandbox), command, policy, sink=_ignore) as box, asyncio.timeout(60):
            ended = await box.end(grace=600)

    assert ended.code != 0


def _ignore(stream: Stream, data: bytes) -> None:
    del stream, data
