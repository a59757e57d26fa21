"""Contracts: what the work of a step must meet to count as a success, and the results of checking."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from shoal.model.shell import SHELL, Render, fill_argv, parameterise, write_out

TRIAL = "select"
"""The name of a selection's command among the checks: it only compares."""
MOST_SCHEMA = 8 * 1024
"""How much of a schema an agent is told."""


@dataclass(frozen=True, slots=True)
class ContractResult:
    """The outcome of one contract; *is_warning* if a failure is only reported."""

    type: str
    is_met: bool
    message: str
    is_warning: bool = False

    @property
    def is_trial(self) -> bool:
        """Return whether it is not a contract, but the command with which a selection compares."""
        return self.type == TRIAL

    @property
    def has_failed(self) -> bool:
        """Return whether it makes the work fail."""
        return not self.is_met and not self.is_warning


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """A requirement of successful work; *type* is its name in YAML."""

    type: str
    only_warns: bool = False

    @property
    def promise(self) -> str:
        """Return the requirement, as the end of "it counts when …"."""
        raise NotImplementedError

    def fill_in(self, render: Render) -> Self:
        """Fill in the placeholders of its texts."""
        del render
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSchema(Contract):
    """A JSON file of the work, or an artifact of the step, matches a schema; *schema* is its canonical JSON."""

    schema: str
    path: str | None = None
    artifact: str | None = None

    @property
    def promise(self) -> str:
        what = f"the artifact `{self.artifact}`" if self.path is None else f"the file `{self.path}`"
        return f"{what} is JSON that fits this schema: {_cut(self.schema, MOST_SCHEMA)}"

    def fill_in(self, render: Render) -> Self:
        return self if self.path is None else replace(self, path=render(self.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandContract(Contract):
    """A command exits with 0 on the work; a text is a shell's, which takes *values* as parameters."""

    command: str | tuple[str, ...]
    values: tuple[str, ...] = ()
    shown: str = ""
    """A shell command as a person would write it, with placeholders filled in."""
    timeout: float | None = None

    @property
    def argv(self) -> tuple[str, ...]:
        """Return what to run."""
        return (*SHELL, self.command, "sh", *self.values) if isinstance(self.command, str) else self.command

    @property
    def words(self) -> str:
        """Return it as a person would write it, with templates filled in."""
        return self.shown or (self.command if isinstance(self.command, str) else " ".join(self.command))

    @property
    def promise(self) -> str:
        within = f" within {self.timeout:g} seconds" if self.timeout is not None else ""
        return f"the command `{_cut(self.words, 1000)}` exits with 0{within}, run on a fresh checkout of your commit"

    def fill_in(self, render: Render) -> Self:
        """Fill in the placeholders; those of a shell command become its variables, so that no value is run as code."""
        if not isinstance(self.command, str):
            return replace(self, command=fill_argv(self.command, render))
        text, values = parameterise(self.command, render)
        return replace(self, command=text, values=values, shown=write_out(self.command, render))


@dataclass(frozen=True, slots=True, kw_only=True)
class NonEmptyFile(Contract):
    """A regular file of the work is not empty."""

    path: str

    @property
    def promise(self) -> str:
        return f"`{self.path}` is a plain file (no link) with something in it"

    def fill_in(self, render: Render) -> Self:
        return replace(self, path=render(self.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDiff(Contract):
    """At least *min_files* files that match *paths*, and not *exclude*, are changed."""

    paths: tuple[str, ...] = ("**",)
    exclude: tuple[str, ...] = ()
    min_files: int = 1

    @property
    def promise(self) -> str:
        but = f", not counting {_list_patterns(self.exclude)}" if self.exclude else ""
        files = "file" if self.min_files == 1 else "files"
        return f"at least {self.min_files} {files} of {_list_patterns(self.paths)} are changed{but}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoTestDeletions(Contract):
    """No test file is deleted, and there are no fewer tests than before; without *patterns*, the usual names count."""

    patterns: tuple[str, ...] = ()

    @property
    def promise(self) -> str:
        which = f" ({_list_patterns(self.patterns)})" if self.patterns else ""
        return f"no test file{which} is deleted or renamed to something else, and no fewer tests are left than before"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReview(Contract):
    """Another agent, given the *criteria* and the diff, says `pass`."""

    criteria: str
    persona: str | None = None
    agent: str | None = None
    timeout: float | None = None

    @property
    def reviewer(self) -> str:
        """Name the reviewer; a persona and an agent may have the same name."""
        return f"agent {self.agent}" if self.persona is None else f"persona {self.persona}"

    @property
    def promise(self) -> str:
        return f"a reviewer ({self.reviewer}) finds that your changes meet these criteria: {self.criteria.strip()}"

    def fill_in(self, render: Render) -> Self:
        return replace(self, criteria=render(self.criteria))


def compliance(contracts: Sequence[Contract]) -> str:
    """Return what will be checked, for the agent's system prompt; empty if nothing will be."""
    if not contracts:
        return ""
    lines = [f"- {contract.promise}{' (a warning only)' if contract.only_warns else ''}" for contract in contracts]
    head = "When you have ended, your work is committed and checked. It counts only when all of this holds:"
    return "\n".join(("## Contract compliance", "", head, *lines))


def failure(checked: Iterable[ContractResult]) -> str | None:
    """Return which contracts make the work fail, and why; `None` if none does."""
    broken = [f"contract {result.type} is not met: {result.message}" for result in checked if result.has_failed]
    return "\n".join(broken) or None


def warnings(checked: Iterable[ContractResult]) -> tuple[str, ...]:
    """Return the unmet contracts that only warn, and whether a selection's command failed."""
    return tuple(_warning(result) for result in checked if result.is_warning and not result.is_met)


def _warning(result: ContractResult) -> str:
    if result.is_trial:
        return f"it cannot be chosen: the command of `select` did not pass: {result.message}"
    return f"contract {result.type} is not met (a warning only): {result.message}"


def canonical_schema(schema: object) -> str:
    """Write a schema as canonical JSON. Raises `ValueError` for what JSON cannot express."""
    return json.dumps(schema, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _list_patterns(patterns: Sequence[str]) -> str:
    return ", ".join(f"`{pattern}`" for pattern in patterns)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
