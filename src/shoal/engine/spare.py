"""The private folder of a session that nobody changed: it serves another one, which then makes and removes little."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.engine.job import Job
from shoal.engine.lease import User
from shoal.engine.site import Site
from shoal.engine.touched import Stamps, stamps
from shoal.workspaces.overlay import Overlay
from shoal.workspaces.remove import Trash

GIT, ASIDE = "git", "git-aside"
LAYERS = ("upper", "work")
# All that we write into it, by folders. What was added or taken away shows in these lists, and what was changed in a
# change time, which nobody can set; of two changes within some milliseconds an older kernel may not show the second.
HOLDS: dict[str, set[str]] = {
    "own": {"home", "tmp", "data"},
    "own/home": {".gitconfig"},
    "own/tmp": set(),
    "own/data": set(),
    GIT: {"HEAD", "config", "index", "objects", "packed-refs", "refs"},
    f"{GIT}/objects": {"info"},
    f"{GIT}/objects/info": {"alternates"},
    f"{GIT}/refs": set(),
}
ENTRIES = {"own", "input", "opened", GIT, *LAYERS}
PLACES = ("own", "input", GIT, *(f"{folder}/{name}" for folder, names in HOLDS.items() for name in names))


@dataclass(frozen=True, slots=True)
class Use:
    """What a private folder can serve for: sessions on the same base, whose inputs have the same names."""

    index: Path
    inputs: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Spare:
    """Whether the private folder of one session may be, and may become, another's."""

    trash: Trash
    use: Use | None
    """`None` for one that no other session could use."""
    _noted: Stamps | None = field(default=None, init=False)

    @classmethod
    def of(cls, site: Site, job: Job, prompts: Mapping[str, object], user: User | None) -> "Spare":
        """Say what the folder of *job* is like."""
        is_plain = isinstance(site.kind, Overlay) and not job.task.inputs and not job.limits.is_exact
        names = (*prompts, *(("passwd", "group", "git") if user else ()))
        is_known = is_plain and site.cleanup and not site.repository.is_shallow
        return cls(trash=site.trash, use=Use(site.base.index, tuple(sorted(names))) if is_known else None)

    def taken(self, box: Path) -> bool:
        """Make *box* of one that is not needed any more; `False` where there is none."""
        return self.use is not None and self.trash.spares.take(box, self.use)

    def note(self, box: Path) -> None:
        """See how the folder is when the agent is let in."""
        if self.use is not None:
            self._noted = stamps(_places(box, self.use.inputs))

    def put(self, box: Path) -> bool:
        """Keep *box* for another session if it is as it was; `False` where it is to be thrown away."""
        if self.use is None or self._noted is None or not self._is_untouched(box, self.use):
            return False
        for name in LAYERS:  # never the same again: the kernel may still have them mounted in a dying namespace
            self.trash.throw(f"{box}/{name}")
        # A killed session is one that has a gitdir, and layers: until those are made, it must not look like one.
        os.rename(f"{box}/{GIT}", gitdir_aside(box))  # noqa: PTH104
        return self.trash.spares.put(box, self.use)

    def _is_untouched(self, box: Path, use: Use) -> bool:
        held = {"": ENTRIES, "input": set(use.inputs), **HOLDS}
        top = str(box)
        try:
            is_whole = all(set(os.listdir(f"{top}/{folder}")) == names for folder, names in held.items())
        except OSError:
            return False
        return is_whole and stamps(_places(box, use.inputs)) == self._noted


def gitdir_aside(box: Path) -> str:
    """Say where the gitdir of a folder lies that waits for its next session."""
    return f"{box}/{ASIDE}"


def _places(box: Path, inputs: Iterable[str]) -> list[str]:
    beginning = str(box)
    return [f"{beginning}/{name}" for name in (*PLACES, *(f"input/{one}" for one in inputs))]
