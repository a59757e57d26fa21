"""The one place that mounts: mount(2) and umount2(2) by ctypes, 0.4 ms instead of 3 ms by mount(8)."""

import ctypes
import errno
import os
from pathlib import Path

from shoal.errors import Broken
from shoal.model.policy import Layers

MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8
MS_NOSUID = 2
MS_NODEV = 4


def mount_overlay(layers: Layers) -> None:
    """Mount *layers* in our own mount namespace; only root can."""
    lower = ":".join(_escaped(path) for path in layers.lower)
    options = f"lowerdir={lower}"
    if layers.upper is not None and layers.work is not None:
        options += f",upperdir={_escaped(layers.upper)},workdir={_escaped(layers.work)}"
    target = os.fsencode(layers.target)
    flags = MS_NOSUID | MS_NODEV
    if _libc().mount(b"overlay", target, b"overlay", flags, os.fsencode(options)) != 0:
        code = ctypes.get_errno()
        raise Broken(f"cannot mount an overlay at {layers.target}: {os.strerror(code)}")


def unmount(target: Path) -> bool:
    """Take away whatever is mounted at *target*, also while in use; `False` when nothing is."""
    if _libc().umount2(os.fsencode(target), MNT_DETACH | UMOUNT_NOFOLLOW) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOENT):
        return False
    raise Broken(f"cannot unmount {target}: {os.strerror(code)}")


def mounted_below(folder: Path) -> list[Path]:
    """List what is mounted below *folder*, the deepest first."""
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as table:  # noqa: PTH123
        targets = [_unescaped(line.split(" ")[1]) for line in table]
    found = [Path(target) for target in targets if Path(target).is_relative_to(folder)]
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _escaped(path: Path) -> str:
    text = str(path)
    for special in "\\:,":
        text = text.replace(special, "\\" + special)
    return text


def _unescaped(text: str) -> str:
    for code, sign in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        text = text.replace(code, sign)
    return text
