"""Every flag of bubblewrap, removed or weakened, and what detects it."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shoal.model.command import InheritedBytes
from shoal.sandboxes import seccomp
from tests.sandboxes.stage import Part, Stage

Change = Callable[[Part], tuple[Part, ...]]


# What a mutation makes of a part.


def removed(_: Part) -> tuple[Part, ...]:
    return ()


def into(*words: str) -> Change:
    """Put these words in its place."""
    return lambda _: (words,)


def renamed(option: str) -> Change:
    """Give the option another name, and leave its words."""
    return lambda part: ((option, *part[1:]),)


def of_the_host(option: str) -> Change:
    """Show the host's own at the target."""
    return lambda part: ((option, part[-1], part[-1]),)


def filtered(program: bytes) -> Change:
    return lambda _: (("--seccomp", InheritedBytes(program)),)


def without_words(*gone: str) -> Change:
    """Take words out of what `--args` hands over."""

    def change(part: Part) -> tuple[Part, ...]:
        assert isinstance(part[1], InheritedBytes)
        words = part[1].content.split(b"\0")[:-1]
        at = next(index for index in range(len(words)) if words[index : index + len(gone)] == [*map(os.fsencode, gone)])
        kept = words[:at] + words[at + len(gone) :]
        return ((part[0], InheritedBytes(b"".join(word + b"\0" for word in kept))),)

    return change


def without_option(option: str) -> Change:
    """Take an option out of the ones that overlayfs is given."""
    return lambda part: (tuple(word.replace(option, "") if isinstance(word, str) else word for word in part),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A weakened flag, and what detects it: *probe*'s answer changes, or the sandbox prints *refusal* and starts nothing.

    *drops* are flags that mean nothing without it, *before* counts the parts before it that belong to it, and *beneath*
    says to empty the seccomp filter first, on both sides, because it would hold alone.
    """

    flag: str
    change: Change = removed
    probe: str = ""
    refusal: str = ""
    stage: str = "shut"
    drops: tuple[str, ...] = ()
    before: int = 0
    beneath: bool = False
    at_once: bool = False


ALLOW_ALL = (0x06).to_bytes(2, "little") + bytes(2) + seccomp.ALLOW.to_bytes(4, "little")

MUTATIONS = {
    "no user namespace": Mutation(flag="--unshare-user", refusal="--unshare-user"),
    "the host's processes": Mutation(flag="--unshare-pid", refusal="pid namespace"),
    "the host's queues": Mutation(flag="--unshare-ipc", probe="namespaces"),
    "the host's name": Mutation(flag="--unshare-uts", probe="namespaces", drops=("--hostname",)),
    "the host's control groups": Mutation(flag="--unshare-cgroup-try", probe="namespaces"),
    "the host's network": Mutation(flag="--unshare-net", probe="network", refusal="network"),
    "user namespaces inside": Mutation(flag="--disable-userns", probe="nested", beneath=True),
    "the terminal's session": Mutation(flag="--new-session", probe="session"),
    "it outlives its parent": Mutation(flag="--die-with-parent", probe="survivor"),
    "another hostname": Mutation(flag="--hostname", probe="hostname"),
    "capabilities": Mutation(flag="--cap-drop", change=into("--cap-add", "ALL"), refusal="Cap"),
    "one capability less": Mutation(flag="--cap-add", refusal="Cap", stage="sealing"),
    "one capability more": Mutation(
        flag="--cap-add", change=into("--cap-add", "CAP_DAC_OVERRIDE"), refusal="Cap", stage="sealing"
    ),
    "another user": Mutation(flag="--uid", probe="uid"),
    "another group": Mutation(flag="--gid", probe="gid"),
    "no link": Mutation(flag="--symlink", probe="links", refusal="execvp"),
    "no process file system": Mutation(flag="--proc", refusal="/proc/self/status", drops=("--remount-ro proc",)),
    "the host's process file system": Mutation(flag="--proc", change=of_the_host("--ro-bind"), probe="processes"),
    "the host's devices": Mutation(flag="--dev", change=of_the_host("--dev-bind"), probe="terminals"),
    "the host's memory folders": Mutation(
        flag="--tmpfs memory", change=of_the_host("--bind"), probe="memory", before=2
    ),
    "memory folders without bound": Mutation(flag="--size", probe="memory"),
    "memory folders of one user": Mutation(flag="--perms memory", probe="memory"),
    "an open frame": Mutation(flag="--remount-ro mask", probe="frames"),
    "no mask": Mutation(flag="--tmpfs mask", change=of_the_host("--bind"), refusal="hidden"),
    "an open root": Mutation(flag="--remount-ro root", probe="root", refusal="writable /"),
    "open devices": Mutation(flag="--remount-ro dev", probe="dev", refusal="writable /dev"),
    "an open process file system": Mutation(flag="--remount-ro proc", probe="proc", refusal="core_pattern"),
    "a writable system": Mutation(
        flag="--ro-bind system", change=renamed("--bind"), probe="read_only", refusal="writable /usr"
    ),
    "a writable toolchain": Mutation(flag="--ro-bind read", change=renamed("--bind"), probe="read_only"),
    "a writable cover": Mutation(flag="--ro-bind cover", change=renamed("--bind"), probe="read_only"),
    "no cover": Mutation(flag="--ro-bind cover", probe="covers"),
    "an unwritable workspace": Mutation(flag="--bind", change=renamed("--ro-bind"), probe="writes"),
    "copies with any mode": Mutation(flag="--perms copy", probe="copies", at_once=True),
    "the host's files for copies": Mutation(
        flag="--file", change=of_the_host("--ro-bind"), probe="copies", before=1, at_once=True
    ),
    "another folder": Mutation(flag="--chdir", probe="cwd"),
    "no environment": Mutation(flag="--args", probe="environment"),
    "the outside's environment": Mutation(flag="--args", change=without_words("--clearenv"), probe="environment"),
    "a variable less": Mutation(flag="--args", change=without_words("--setenv", "MINE", "1"), probe="environment"),
    "no filter": Mutation(flag="--seccomp", refusal="seccomp"),
    "an empty filter": Mutation(flag="--seccomp", change=filtered(ALLOW_ALL), probe="keyctl"),
    "no report": Mutation(flag="--info-fd", probe="report"),
    "abstract sockets": Mutation(flag="scope", probe="abstract", stage="open"),
    "no layers": Mutation(flag="layers", probe="layers", stage="layered"),
    "layers without their marks": Mutation(
        flag="layers", change=without_option("userxattr,"), probe="layers", refusal="layers", stage="layered"
    ),
}

# Only root owns what these hide.
FOR_ROOT = {
    "root's device nodes": Mutation(flag="--dev-bind", probe="devices"),
    "root's device nodes without devices": Mutation(flag="--dev-bind", change=renamed("--ro-bind"), probe="devices"),
    "root's kernel files": Mutation(flag="--ro-bind closed", probe="closed"),
}
if os.geteuid() == 0:
    MUTATIONS |= FOR_ROOT


def lowered(stage: Stage, mutation: Mutation) -> list[Part]:
    """Return the whole argv, in parts, with an empty filter if that would hide the mutation."""
    empty = filtered(ALLOW_ALL)
    return [
        new
        for part in stage.parts()
        for new in (empty(part) if mutation.beneath and part[0] == "--seccomp" else (part,))
    ]


def mutated(stage: Stage, mutation: Mutation) -> Iterator[list[Part]]:
    """Return the argv, in parts, once for each position of the flag, or once for all of them."""
    parts = lowered(stage, mutation)
    places = [at for at, part in enumerate(parts) if stage.role(part) == mutation.flag]
    assert places, f"{mutation.flag} is nowhere in the real argv"
    for chosen in [places] if mutation.at_once else [[place] for place in places]:
        gone = {at - back for at in chosen for back in range(1, mutation.before + 1)}
        gone |= {at for at, part in enumerate(parts) if stage.role(part) in mutation.drops}
        changed = (
            mutation.change(part) if at in chosen else (part,) for at, part in enumerate(parts) if at not in gone
        )
        yield [part for new in changed for part in new]
