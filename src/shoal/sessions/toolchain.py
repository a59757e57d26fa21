"""Find the host folders that a command needs: its interpreter's and its own installation."""

import functools
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import Unavailable
from shoal.model.setup import ToolFolder

SYSTEM = tuple(Path(name) for name in ("/usr", "/bin", "/sbin", "/lib", "/lib64"))
DEEPEST = 8


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Folders and files to show read-only, and the folders that belong on PATH."""

    read: tuple[Path, ...]
    path: tuple[Path, ...]


def toolchain(program: str, *, search: str, private: tuple[Path, ...]) -> Toolchain:
    """Find what *program* needs; nothing that contains one of the *private* folders is ever shown.

    A relative path belongs to the workspace and needs nothing.
    """
    # Cached for this second: following links and `#!` lines takes many disk accesses.
    return _toolchain(program, search, private, int(time.monotonic()))


@functools.lru_cache(maxsize=64)
def _toolchain(program: str, search: str, private: tuple[Path, ...], _second: int) -> Toolchain:
    if "/" in program and not program.startswith("/"):
        return Toolchain((), ())
    found = shutil.which(program, path=search)
    if found is None:
        raise Unavailable(f"the agent's command {program!r}", "it is not on PATH", "install it, or name its full path")
    hops = [hop for hop in _hops(Path(found), search) if not _is_system(hop)]
    if missing := next((hop for hop in hops if hop.is_absolute() and not hop.exists()), None):
        why = f"{found} needs {missing}, which is missing"
        raise Unavailable(f"the agent's command {program!r}", why, "install it again")
    read = (shown for hop in hops for shown in (_install_folder(hop, private), _own_folder(hop, private)))
    return Toolchain(tuple(dict.fromkeys(read)), tuple(dict.fromkeys(hop.parent for hop in hops)))


def show_folders(folders: Sequence[ToolFolder]) -> Toolchain:
    """Show the folders that the user named, also under the names of links; they need not contain programs."""
    read = dict.fromkeys(place for folder in folders for place in (folder.path, folder.path.resolve()))
    path = dict.fromkeys(
        place for folder in folders for place in (folder.path / "bin", folder.path) if _has_programs(place)
    )
    return Toolchain(tuple(read), tuple(path))


def search_path(environ: Mapping[str, str], folders: Sequence[ToolFolder]) -> Mapping[str, str]:
    """Add *folders* to the user's PATH, at its end."""
    path = [word for word in (environ.get("PATH", ""), *map(str, show_folders(folders).path)) if word]
    return {**environ, "PATH": ":".join(path)} if folders else environ


def _has_programs(folder: Path) -> bool:
    try:
        return any(os.access(file, os.X_OK) and file.is_file() for file in folder.iterdir())
    except OSError:
        return False


def _hops(path: Path, search: str, depth: int = 0) -> Iterator[Path]:
    """Follow links and `#!` lines, yielding every file on the way."""
    if depth > DEEPEST:
        return
    yield path
    if path.is_symlink():
        yield from _hops(Path(os.path.normpath(path.parent / path.readlink())), search, depth + 1)
        return
    real = path.resolve()
    if real != path:
        yield from _hops(real, search, depth + 1)
    elif (interpreter := _interpreter(path, search)) is not None:
        yield from _hops(interpreter, search, depth + 1)


def _interpreter(path: Path, search: str) -> Path | None:
    try:
        with path.open("rb") as file:
            line = file.readline(256)
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    words = line[2:].decode(errors="replace").split()
    if words and Path(words[0]).name == "env":
        named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
        # The script's own folder comes first: nvm, pyenv and venvs keep their interpreter there.
        found = shutil.which(named, path=f"{path.parent}:{search}")
        return Path(found) if found else None
    return Path(words[0]) if words else None


def _is_system(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in SYSTEM)


def _own_folder(hop: Path, private: tuple[Path, ...]) -> Path:
    return hop if _holds(hop.parent, private) else hop.parent


def _install_folder(hop: Path, private: tuple[Path, ...]) -> Path:
    """Return the folder above `bin`, `shims` or `node_modules`; the file alone if that would show too much."""
    folder = hop.parent
    if "node_modules" in hop.parts:
        folder = Path(*hop.parts[: hop.parts.index("node_modules") + 1])
    elif folder.name in ("bin", "shims", "libexec", "Scripts"):
        folder = folder.parent
    # `~/.local` contains far more than programs: keyrings, shell history, state of other tools.
    if folder.name == ".local" or _is_home(folder) or _holds(folder, private):
        return _own_folder(hop, private)
    return folder


def _is_home(folder: Path) -> bool:
    """Return whether *folder* is somebody's home, which no agent needs to see."""
    if folder.parent == Path("/home") or folder == Path("/root"):
        return True
    return any((folder / name).exists() for name in (".ssh", ".gnupg", ".bashrc", ".profile", ".config"))


def _holds(folder: Path, private: tuple[Path, ...]) -> bool:
    return any(place.is_relative_to(folder) for place in private)
