"""A worker as a value that can travel: everything that another machine needs to run its session, except secrets."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.model.artifact import Artifact
from shoal.model.contract import CommandContract, Contract
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """One attempt of one worker; its fields mean what they mean in `WorkerSpec`."""

    step: str
    index: int
    count: int
    task: ResolvedTask
    hex: str
    label: str = ""
    base: str
    """The commit to start from."""
    trusted: str
    """The newest commit that contains no work of agents that the user did not approve."""
    purpose: Purpose = Purpose.WORK
    attempt: int = 1
    visit: int = 1
    start_note: str = ""
    content: str = ""
    spent_before: Mapping[str, float] = field(default_factory=dict)
    database: str | None = None
    trusts_base: bool = True
    item: str | None = None
    artifacts: tuple[Artifact, ...] = ()
    contracts: tuple[Contract, ...] = ()
    trial: CommandContract | None = None
    reviewers: Mapping[str, ResolvedTask] = field(default_factory=dict)
    sandbox: str | None = None
    """Its sandbox, if not the run's."""
    isolation: str | None = None
    """Its kind of workspace, if not the run's."""
    stands_for: str | None = None
    """The commit that its work is measured from, if it starts with the files of an interrupted session."""
