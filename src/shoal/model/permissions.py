"""Permissions of a session: what it may touch, for programs that ask; the sandbox enforces them for agents."""

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path, PurePosixPath
from typing import Self

from shoal.errors import BadInput, ExitCode, ShoalError, UnknownName

MOST_DECISIONS = 1000
MOST_SUBJECT = 500
NO_RULE = "no rule"
"""No rule denies it."""
NOT_LISTED = "not listed"
"""Only listed things are allowed, and this is not listed."""

_TOOL = re.compile(r"(?P<tool>[\w*.-]+)(?:\((?P<glob>.+)\))?", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST = re.compile(r"(?:\*\.)?[A-Za-z0-9_:.-]+")


class AccessDenied(ShoalError):
    """A path outside what the session may touch."""

    exit_code = ExitCode.BAD_INPUT

    def __init__(self, path: Path) -> None:
        super().__init__(f"Access denied: {path}")
        self.path = path


@dataclass(frozen=True, slots=True)
class ToolRule:
    """A pattern `Tool` or `Tool(glob)`; only `*` is special, and matches anything, including blanks and slashes.

    `Bash(git:*)`, as clients write it, means `git` alone or with anything after it.
    """

    pattern: str
    tool: str
    glob: str | None

    @classmethod
    def of(cls, pattern: str) -> Self:
        """Read a pattern; raises `BadInput` with its text when it is malformed."""
        found = _TOOL.fullmatch(pattern)
        if found is None:
            raise BadInput(f"the tool pattern {pattern!r} is malformed; write `Tool` or `Tool(glob)`")
        return cls(pattern, found["tool"], found["glob"])

    def covers(self, tool: str, argument: str) -> bool:
        """Return whether this rule applies to *tool* with *argument*."""
        return _fits(self.tool, tool) and (self.glob is None or _argument_fits(self.glob, argument))


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """What a persona or a session may use and touch.

    Without *allowed_tools* every tool is allowed that *deny* does not name; an empty list allows none. All else is
    what is listed and no more: *readable* and *writable* folders and files (relative ones lie in the workspace; each is
    asked about on its own), names of variables that may be taken from the host (*env*), and *hosts* (`example.org`,
    `*.example.org`). *provider_tools* are those that the provider of its model carries out. `None` is a list that
    nobody gave.
    """

    allowed_tools: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    readable: tuple[str, ...] = (".",)
    writable: tuple[str, ...] = (".",)
    env: tuple[str, ...] | None = None
    hosts: tuple[str, ...] | None = None
    provider_tools: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for rule in fields(self):
            given = getattr(self, rule.name)
            if given is not None or rule.default is not None:
                object.__setattr__(self, rule.name, _texts(rule.name, given))
        for pattern in (*(self.allowed_tools or ()), *self.deny):
            ToolRule.of(pattern)
        _check("env", self.env or (), _NAME)
        _check("hosts", self.hosts or (), _HOST)
        _check("provider_tools", self.provider_tools or (), _NAME)

    @classmethod
    def of(cls, mapping: Mapping[str, object]) -> Self:
        """Read a mapping; raises `BadInput` for an unknown key, with the closest one, and for an invalid value."""
        known = [rule.name for rule in fields(cls)]
        for name in mapping:
            if name not in known:
                raise UnknownName("permission", str(name), known)
        return cls(**{name: _texts(name, value) for name, value in mapping.items()})

    @property
    def outside(self) -> tuple[str, ...]:
        """The readable paths outside the workspace."""
        return tuple(path for path in self.readable if path.startswith("/"))

    def in_session(self) -> Self:
        """Return what a sandbox enforces: the workspace is always readable; raise `BadInput` for what none can."""
        for path in self.readable:
            if not PurePosixPath(path).is_absolute() and os.path.normpath(path) != ".":
                why = "an agent can read all of its workspace, by git if not by name"
                raise BadInput(f"permissions: readable {path!r} cannot be enforced: {why}; use absolute paths")
        for path in self.writable:
            if reason := _unwritable(path):
                raise BadInput(f"permissions: writable {path!r} {reason}; name a path in the workspace, from its top")
        return replace(self, readable=(".", *self.outside))


def effective(*nearest_first: Permissions | None) -> Permissions | None:
    """Return the closest permissions, with the deny rules of all."""
    given = [permissions for permissions in nearest_first if permissions is not None]
    if not given:
        return None
    deny = dict.fromkeys(pattern for permissions in reversed(given) for pattern in permissions.deny)
    return replace(given[0], deny=tuple(deny))


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision: the *rule* that made it, and its subject; true if it is allowed."""

    allowed: bool
    rule: str
    subject: str

    def __bool__(self) -> bool:
        return self.allowed


class PermissionManager:
    """Decides for one session by its initial permissions, and records each decision."""

    def __init__(
        self,
        workspace: Path,
        permissions: Permissions | None = None,
        *,
        tell: Callable[[Decision], None] | None = None,
    ) -> None:
        self.workspace = Path(os.path.realpath(workspace))
        self.permissions = permissions or Permissions()
        self._tell = tell
        self._audit: deque[Decision] = deque(maxlen=MOST_DECISIONS)
        allowed = self.permissions.allowed_tools
        self._allow = None if allowed is None else tuple(map(ToolRule.of, allowed))
        self._deny = tuple(map(ToolRule.of, self.permissions.deny))
        self._readable = tuple(map(self._root, self.permissions.readable))
        self._writable = tuple(map(self._root, self.permissions.writable))

    @property
    def audit(self) -> tuple[Decision, ...]:
        """The last decisions, oldest first."""
        return tuple(self._audit)

    def tool_allowed(self, tool: str, argument: str = "") -> Decision:
        """Return whether *tool* may be used with *argument*; deny rules win."""
        subject = f"{tool}({argument})" if argument else tool
        if denied := _first(self._deny, tool, argument):
            return self._decide(False, denied.pattern, subject)
        if self._allow is None:
            return self._decide(True, NO_RULE, subject)
        allowed = _first(self._allow, tool, argument)
        return self._decide(allowed is not None, allowed.pattern if allowed else NOT_LISTED, subject)

    def env_allowed(self, name: str) -> Decision:
        """Return whether the host variable *name* may be used."""
        listed = name in (self.permissions.env or ())
        return self._decide(listed, name if listed else NOT_LISTED, f"env {name}")

    def host_allowed(self, host: str) -> Decision:
        """Return whether *host* may be contacted; `*.example.org` is every name below `example.org`."""
        name = host.lower().removesuffix(".")
        rule = next((rule for rule in self.permissions.hosts or () if _host_fits(rule.lower(), name)), None)
        return self._decide(rule is not None, rule or NOT_LISTED, f"host {host}")

    def is_allowed(self, path: str | Path, write: bool = False) -> bool:
        """Return whether *path*, with all links followed, may be read or written; the workspace's `.git` never is."""
        return self._path_decided(path, self._real(path), write).allowed

    def validate_path(self, path: str | Path, write: bool = False) -> Path:
        """Return the real path, or raise `AccessDenied`.

        The answer is about this moment: whoever can write there can change where the path leads.
        """
        real = self._real(path)
        decision = self._path_decided(path, real, write)
        if real is None or not decision:
            raise AccessDenied(Path(path))
        return real

    def _path_decided(self, path: str | Path, real: Path | None, write: bool) -> Decision:
        subject = f"{'write' if write else 'read'} {path}"
        if real is None:
            return self._decide(False, "no path", subject)
        if real.is_relative_to(self.workspace / ".git"):
            return self._decide(False, ".git", subject)
        roots = self._writable if write else self._readable
        root = next((root for root in roots if real.is_relative_to(root)), None)
        return self._decide(root is not None, str(root) if root else NOT_LISTED, subject)

    def _real(self, path: str | Path) -> Path | None:
        try:
            return Path(os.path.realpath(self.workspace / path))
        except (OSError, ValueError, RecursionError):  # a NUL in the name, or a long chain of links made by an agent
            return None

    def _root(self, path: str) -> Path:
        real = self._real(path)
        if real is None or not (Path(path).is_absolute() or real.is_relative_to(self.workspace)):
            raise BadInput(f"the permitted path {path!r} leads out of the workspace; write it as an absolute path")
        return real

    def _decide(self, allowed: bool, rule: str, subject: str) -> Decision:
        clipped = subject if len(subject) <= MOST_SUBJECT else f"{subject[:MOST_SUBJECT]}…"
        decision = Decision(allowed, rule, clipped)
        self._audit.append(decision)
        if self._tell is not None:
            self._tell(decision)
        return decision


def _first(rules: Iterable[ToolRule], tool: str, argument: str) -> ToolRule | None:
    return next((rule for rule in rules if rule.covers(tool, argument)), None)


def _argument_fits(glob: str, argument: str) -> bool:
    stem = glob.removesuffix(":*")
    is_prefix = stem != glob and any(_fits(form, argument) for form in (stem, f"{stem} *"))
    return is_prefix or _fits(glob, argument)


def _fits(glob: str, text: str) -> bool:
    """Match piece by piece, because a regular expression could be made to take hours."""
    first, *rest = glob.split("*")
    if not rest:
        return glob == text
    *middle, last = rest
    at = len(first)
    for piece in middle:
        found = text.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return text.startswith(first) and text.endswith(last) and at + len(last) <= len(text)


def _host_fits(rule: str, host: str) -> bool:
    return host.endswith(rule.removeprefix("*")) if rule.startswith("*.") else host == rule.removesuffix(".")


def _unwritable(path: str) -> str | None:
    """Return why agents can never write *path*."""
    named = PurePosixPath(path)
    if named.is_absolute():
        return "lies outside of the workspace, and agents write only in it"
    if ".." in named.parts or "\0" in path:
        return "does not say where it leads"
    return "is git's own, and never open" if named.parts[:1] == (".git",) else None


def _texts(name: str, value: object) -> tuple[str, ...]:
    items = tuple(value) if isinstance(value, list | tuple) else ()
    texts = tuple(str(item) for item in items if isinstance(item, str | Path))
    if not isinstance(value, list | tuple) or len(texts) != len(items) or not all(texts):
        raise BadInput(f"permissions: {name!r} must be a list of texts, not {value!r:.80}")
    return texts


def _check(name: str, values: Iterable[str], form: re.Pattern[str]) -> None:
    for value in values:
        if not form.fullmatch(value):
            raise BadInput(f"permissions: {value!r} is not allowed in {name!r}")
