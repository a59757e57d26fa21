"""A gateway, a model on loopback, and scripts in real sandboxes that have no other network."""

import contextlib
import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.gateway.gateway import Gateway, Services, open_gateway
from shoal.model.command import Command
from shoal.model.gateway import SessionOrder, Upstream
from shoal.model.policy import Network, Policy
from shoal.proc.output import HeadBuffer
from shoal.sandboxes.kind import Sandbox
from shoal.sessions.host_probe import probe_sandbox
from shoal.sessions.sandboxed import open_sandboxed
from shoal.testing.model import ModelServer

KEY = "sk-real-key-0123456789"


@dataclass
class Scene:
    """A gateway whose model is on loopback."""

    gateway: Gateway
    sandbox: Sandbox
    model: ModelServer
    said: list[dict[str, Any]] = field(default_factory=list)

    def order(self, name: str = "work-1", hosts: tuple[str, ...] = ()) -> SessionOrder:
        formats = {"anthropic": self.model.url, "openai": f"{self.model.url}/v1"}
        upstreams = tuple(Upstream(name=kind, url=url, format=kind, key=KEY) for kind, url in formats.items())
        return SessionOrder(session=name, run="r", step="work", upstreams=upstreams, hosts=hosts)

    async def run(self, script: str, order: SessionOrder | None = None, services: Services | None = None) -> str:
        """Run a script of Python in a sandbox; it finds URL and TOKEN."""
        async with self.gateway.hold_session(
            order or self.order(), lambda message: self.said.append(dict(message)), services
        ) as session:
            env = {"PATH": "/usr/bin:/bin", "URL": session.access.url, "TOKEN": session.access.token}
            command = Command(argv=("/usr/bin/python3", "-c", script), cwd=Path("/"), env=env)
            said = HeadBuffer(100_000)
            policy = Policy(token=secrets.token_hex(8), network=Network.GATEWAY)
            async with open_sandboxed(
                self.sandbox, command, policy, sink=lambda _stream, data: said.feed(data), listen=session.listen
            ) as box:
                await box.wait()
            return said.content().decode()


@contextlib.asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    """Open a gateway."""
    sandbox = await probe_sandbox("bubblewrap", os.environ)
    async with (
        ModelServer() as model,
        open_gateway(os.environ) as gateway,
    ):
        yield Scene(gateway, sandbox, model)
