"""A folder of the host's programs that every agent of a run is shown."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ToolFolder:
    """One entry of `runtime.toolchains`; *at* says where it was written, for messages."""

    path: Path
    at: str
