"""What `shoal merge` may use besides git: a verification, and who resolves conflicts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.cli.plain import plain
from shoal.errors import BadInput
from shoal.model.assignment import Assignment
from shoal.model.conflict_rule import ConflictRule, verification
from shoal.model.contract import Passes
from shoal.pipeline.duration import seconds
from shoal.pipeline.own_file import own_file

AT_ONCE = 3


@dataclass(frozen=True, slots=True)
class Help:
    """What a merge may use besides git."""

    rule: ConflictRule = ConflictRule.REPORT
    verify: Passes | None = None
    resolver: str | None = None
    file: Path | None = None
    at_once: int = AT_ONCE

    @property
    def needs_boxes(self) -> bool:
        """Say whether anything has to run behind a wall."""
        return self.verify is not None or self.rule is ConflictRule.AGENT

    def assert_sense(self) -> None:
        """Refuse what does not go together, and what only the file of a run can ask for."""
        if self.rule is ConflictRule.REDO:
            where = "write `on_conflict: redo` under `runtime.merge` of the file, and run that"
            raise BadInput(f"--on-conflict redo does a task again, and a run that has ended keeps no plan; {where}")
        if self.rule is ConflictRule.AGENT and self.resolver is None:
            raise BadInput("--on-conflict agent needs --resolver: a persona or an agent of your file")
        if self.rule is not ConflictRule.AGENT and (self.resolver or self.file):
            raise BadInput("--resolver and --file go with --on-conflict agent; add that, or leave them out")
        if self.at_once < 1:
            raise BadInput(f"-j {self.at_once}: at least 1 box has to work at a time")

    def settled(self, folder: Path, environ: Mapping[str, str]) -> Assignment | None:
        """Find who resolves conflicts."""
        if self.resolver is None:
            return None
        from shoal.pipeline.load import load  # reading YAML takes as long to load as all the rest
        from shoal.pipeline.plan import resolver

        file = self.file or own_file(folder)
        if not file.is_file():
            raise BadInput(f"there is no {plain(str(file))} that could say who {self.resolver!r:.60} is; give --file")
        return resolver(load(file), self.resolver, environ=environ)


def verifying(command: str | None, timeout: str | None) -> Passes | None:
    """Read what is to be verified, and for how long."""
    if command is None:
        if timeout is not None:
            raise BadInput("--verify-timeout says how long --verify may take; add that, or leave it out")
        return None
    if not command.strip() or "\0" in command:
        raise BadInput("--verify is empty; give a command for the shell, like `pytest -q`")
    return verification(command, None if timeout is None else _length(timeout))


def _length(written: str) -> float:
    return seconds(float(written)) if written.replace(".", "", 1).isdigit() else seconds(written)
