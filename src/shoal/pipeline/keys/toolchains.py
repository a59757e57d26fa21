"""The key `runtime.toolchains`: folders of programs, each checked on this host before anything starts.

The repository is not known here: `runs/preflight.py` checks what is inside it.
"""

import contextlib
import os
import pwd
from collections.abc import Iterator, Mapping
from pathlib import Path

from shoal.model.setup import ToolFolder
from shoal.pipeline.problems import Problem, show_value
from shoal.pipeline.resolve import StepResolver
from shoal.pipeline.tree import position

SHUT = tuple(map(Path, ("/etc", "/root", "/home", "/dev", "/proc", "/run", "/sys", "/var/run")))
"""Settings and homes, sockets and devices of the host; folders inside a home may contain programs."""
HOMES = (Path("/root"), Path("/home"))
SECRETS = (
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".git-credentials", ".password-store"),
    *(".config/gh", ".config/gcloud", ".config/git", ".local/share/keyrings", ".pki", ".npmrc", ".pypirc", ".pgpass"),
    *(".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials", ".m2/settings.xml", ".terraform.d"),
    *(".claude", ".claude.json", ".codex", ".gemini", ".copilot", ".config/goose", ".local/share/opencode"),
)
"""A person's credentials, relative to their home."""


def tool_folders(settling: StepResolver) -> tuple[ToolFolder, ...]:
    """Find the folders that the document names; missing ones, and those that must stay hidden, are reported."""
    document, found = settling.document, []
    for index, text in enumerate(document.shape.runtime.toolchains):
        where = ("runtime", "toolchains", index)
        path = _resolve_folder(text, settling.environ)
        if why := _refusal(path, settling.environ):
            settling.refuse(where, f"`toolchains`: {show_value(text)} cannot be shown to agents: {why}")
        settling.notes.append(f"all agents may run programs in {path}")
        found.append(ToolFolder(path, str(Problem(document.name, position(document.tree, where), "`toolchains`"))))
    return tuple(found)


def _resolve_folder(text: str, environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME") or next(_homes({}), Path("/nowhere"))
    return Path(os.path.normpath(f"{home}{text[1:]}" if text.startswith("~") else text))


def _refusal(path: Path, environ: Mapping[str, str]) -> str | None:
    try:
        real = Path(os.path.realpath(path, strict=True))
    except OSError:
        return "it does not exist, or you may not look at it"
    if not real.is_dir():
        return "it is not a folder"
    for home in _homes(environ):
        if home.is_relative_to(real):
            return "it contains your home; name a folder in it"
    if shut := next((folder for folder in SHUT if _is_opened_by(real, folder)), None):
        return f"{shut} stays hidden from agents"
    if held := next(_secrets(real, environ), None):
        return f"credentials lie in {held}; name a folder without them"
    return None


def _is_opened_by(real: Path, shut: Path) -> bool:
    if shut.is_relative_to(real):
        return True
    # A folder right below `/home` is somebody's home.
    return real.parent == shut if shut == Path("/home") else real.is_relative_to(shut) and shut not in HOMES


def _secrets(real: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Return the credentials that *real* is, is inside, or contains: this user's, or those of any home."""
    for secret in (home / name for home in _homes(environ) for name in SECRETS):
        if real.is_relative_to(secret) or (secret.is_relative_to(real) and os.path.lexists(secret)):
            yield secret
    yield from (secret for name in SECRETS if os.path.lexists(secret := real / name))


def _homes(environ: Mapping[str, str]) -> Iterator[Path]:
    if named := environ.get("HOME", "").rstrip("/"):
        yield Path(os.path.realpath(named))
    with contextlib.suppress(KeyError):  # a container's user may have no entry
        yield Path(os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir))
