"""`shoal mcp install`: write ourselves into the settings of a client, and nothing else."""

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.cli import output
from shoal.cli.output import escape
from shoal.errors import BadInput, Broken, UnknownName
from shoal.mcp.clients import CLIENTS, NAME, Form, McpClient
from shoal.mcp.settings_text import edit_json, edit_toml
from shoal.pipeline.edit_yaml import set_entry

MAX_BYTES = 64 * 2**20
"""Claude Code keeps its history in the same file."""
EDITS = {Form.JSON: edit_json, Form.TOML: edit_toml, Form.YAML: set_entry}


def change_clients(names: Sequence[str], repo: Path | None, *, is_added: bool, print_only: bool) -> int:
    """Add us to the settings of each client in *names*, or remove us."""
    if not names:
        raise BadInput(f"name a client: {', '.join(CLIENTS)}")
    for name in names:
        if name not in CLIENTS:
            raise UnknownName("client", name[:40], CLIENTS)
    words = [*_find_program(), "mcp", *(["--repo", str(repo)] if repo else ())]
    changes = [
        _SettingsChange.of(CLIENTS[name], words if is_added else None) for name in names
    ]  # all are read before a write
    for change in changes:
        output.print_out(change.show() if print_only else change.apply())
    return 0


@dataclass(frozen=True, slots=True)
class _SettingsChange:
    """The settings of one client, before and after."""

    client: McpClient
    file: Path
    before: str | None
    after: str
    added: str = ""
    """Our entry alone, as it would look in an empty file."""

    @classmethod
    def of(cls, client: McpClient, words: Sequence[str] | None) -> "_SettingsChange":
        """Find what the file of *client* should say; without *words*, nothing of us."""
        # a link, as of people who keep their settings in a repository, is followed
        file = Path(os.path.realpath(client.file(os.environ)))
        before = _read(file)
        entry = None if words is None else client.describe(words)
        if entry is None and before is None:
            return cls(client, file, before, "")
        edit = EDITS[client.form]
        try:
            after = edit(before or "", client.servers, NAME, entry)
        except BadInput as error:
            shown = "" if entry is None else f"; add this to its `{client.servers}` yourself: {NAME!r}: {entry}"
            raise BadInput(f"{escape(str(file))} {error}; it was left as it is{escape(shown)}") from None
        return cls(client, file, before, after, edit("", client.servers, NAME, entry) if entry else "")

    def show(self) -> str:
        """Show the file and our part of it; the rest may hold keys."""
        what = "changes nothing in" if self.after == (self.before or "") else "changes"
        return "\n".join((f"# {what} {escape(str(self.file))}", escape(self.added, keep="\n"))).rstrip()

    def apply(self) -> str:
        """Write the file, if it changes, and say what was done."""
        shown = f"{self.client.title}: {escape(str(self.file))}"
        if self.after == (self.before or ""):
            return f"{shown} needs no change"
        if _read(self.file) != self.before:
            raise BadInput(f"{shown} was changed by another program just now; try again")
        _replace(self.file, self.after)
        return f"{shown} was changed; start {self.client.title} anew"


def _find_program() -> list[str]:
    """Find how a client, whose PATH may be another, starts us."""
    own = Path(sys.argv[0])
    if own.name == NAME and own.is_file():
        return [str(own.absolute())]
    found = shutil.which(NAME)
    return [str(Path(found).absolute())] if found else [sys.executable, "-P", "-m", "shoal"]


def _read(file: Path) -> str | None:
    try:
        if file.exists() and not file.is_file():
            raise BadInput(f"{escape(str(file))} is no file")
        with file.open(encoding="utf-8", newline="") as opened:
            text = opened.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{escape(str(file))} cannot be read: {error}") from None
    if len(text) > MAX_BYTES:
        raise BadInput(f"{escape(str(file))} is too large")
    return text


def _replace(file: Path, text: str) -> None:
    """Replace *file* as a whole, and keep its rights: it may hold keys."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
        descriptor, draft = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as new:
                new.write(text)
                new.flush()
                os.fsync(new.fileno())
            Path(draft).chmod(mode)
            Path(draft).replace(file)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise Broken(f"{escape(str(file))} could not be written: {error.strerror}") from error
