"""How a workspace is made ready for its agent: commands, and files of the user's checkout."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.model.policy import NETWORKS, Network

USUAL_SECONDS = 600.0
# What is another for each session: a set-up that names one of these cannot be shared.
OWN_NAMES = frozenset(
    {
        *("SHOAL_STEP", "SHOAL_SESSION", "SHOAL_WORKER_INDEX", "SHOAL_WORKER_COUNT", "SHOAL_BRANCH", "SHOAL_PORT"),
        *("SHOAL_RUN", "SHOAL_PROMPT_FILE", "SHOAL_SYSTEM_PROMPT_FILE", "SHOAL_INPUTS_DIR", "SHOAL_PERMISSIONS_FILE"),
        *("SHOAL_DATABASE_URL", "DATABASE_URL", "COMPOSE_PROJECT_NAME", "CONDUCTOR_WORKSPACE_NAME", "CONDUCTOR_PORT"),
    }
)
ROOT_NAMES = frozenset({"SHOAL_ROOT_PATH", "CONDUCTOR_ROOT_PATH", "ROOT_WORKTREE_PATH"})
_WORD = re.compile(r"[A-Z][A-Z_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Commands that are run one after the other before an agent is let in; none where a document wants none."""

    commands: tuple[str, ...] = ()
    network: Network | None = None
    """Which network they are on; `None` is that of the agent."""
    timeout: float = USUAL_SECONDS
    each: bool | None = None
    """Whether they are run for every workspace; `None` means only where they name what differs between sessions."""
    source: str = ""
    """The file of the repository that brings them; empty where they are the document's own."""
    is_confined: bool = False
    """Whether they lost their own network, because they run on the work of agents."""

    @property
    def named(self) -> frozenset[str]:
        """The words in the commands that could be variables."""
        return frozenset(_WORD.findall("\n".join(self.commands)))

    def within(self, network: Network) -> "Setup":
        """Restrict the commands to the agent's own *network*."""
        if self.network is None or NETWORKS[self.network].is_within(NETWORKS[network]):
            return self
        return replace(self, network=network, is_confined=True)

    @property
    def is_each(self) -> bool:
        """Return whether every workspace has a run of its own."""
        return bool(self.named & OWN_NAMES) if self.each is None else self.each


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupRecord:
    """The set-up that a session had, as far as it may be written down: of variables from the host only the names."""

    setup: Setup
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    network: Network = Network.NONE
    """Which network the agent itself was on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What a repository says about set-up itself: where no document does, and which files of the checkout go along.

    *files* is a folder with copies of those; *digest* names their contents.
    """

    setup: Setup | None = None
    problem: str = ""
    """Why its set-up cannot be read."""
    files: Path | None = None
    included: tuple[str, ...] = ()
    digest: str = ""
    refusal: str = ""
    """Why files cannot go along that were named."""


def with_aliases(env: dict[str, str]) -> dict[str, str]:
    """Add the names by which scripts that were written for others know the same things."""
    others = {
        "CONDUCTOR_WORKSPACE_NAME": "SHOAL_SESSION",
        "CONDUCTOR_WORKSPACE_PATH": "SHOAL_WORKSPACE_PATH",
        "CONDUCTOR_ROOT_PATH": "SHOAL_ROOT_PATH",
        "CONDUCTOR_PORT": "SHOAL_PORT",
        "ROOT_WORKTREE_PATH": "SHOAL_ROOT_PATH",
    }
    return {**env, **{name: env[ours] for name, ours in others.items() if ours in env}}


@dataclass(frozen=True, slots=True)
class ToolFolder:
    """One entry of `runtime.toolchains`; *at* says where it was written, for messages."""

    path: Path
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """*start* is *commit* without what earlier agents wrote at *paths*, which are escaped for display."""

    commit: str
    start: str
    paths: tuple[str, ...]
