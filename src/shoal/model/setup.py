"""Set-up: how a workspace is prepared for its agent, with commands and files of the user's checkout."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.model.policy import NETWORKS, Network

USUAL_SECONDS = 600.0
# What differs for each session: a set-up that uses one of these cannot be shared.
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
    """Commands that run one after the other before an agent starts; none if a document says so."""

    commands: tuple[str, ...] = ()
    network: Network | None = None
    """Their network; `None` means the agent's."""
    timeout: float = USUAL_SECONDS
    each: bool | None = None
    """Whether they run in every workspace; `None` means only if they use what differs between sessions."""
    source: str = ""
    """The file of the repository that defines them; empty if a document does."""
    is_confined: bool = False
    """Whether they lost their own network, because they run on agents' work."""

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
        """Return whether they run in every workspace."""
        return bool(self.named & OWN_NAMES) if self.each is None else self.each


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupRecord:
    """The set-up of a session, as far as it may be recorded: of host variables only the names."""

    setup: Setup
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    network: Network = Network.NONE
    """The agent's own network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A repository's own set-up, for plans without one, and the files of the checkout that are included.

    *files* is a folder with copies of those; *digest* identifies their contents.
    """

    setup: Setup | None = None
    problem: str = ""
    """Why its set-up cannot be read."""
    files: Path | None = None
    included: tuple[str, ...] = ()
    digest: str = ""
    refusal: str = ""
    """Why files that were named cannot be included."""


def with_aliases(env: dict[str, str]) -> dict[str, str]:
    """Add the names that scripts for other tools use for the same values."""
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
    """An entry of `runtime.toolchains`; *at* is its position, for messages."""

    path: Path
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """*start* is *commit* without what earlier agents wrote at *paths*, which are escaped for display."""

    commit: str
    start: str
    paths: tuple[str, ...]
