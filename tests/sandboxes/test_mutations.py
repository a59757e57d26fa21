"""Every flag of the wall of namespaces, taken out or weakened: a named probe inside turns red, or no box starts.

The list is whole by construction: a flag in the real argv that no mutation names fails a test of its own.
"""

import json
import os
import select
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from shoal.model.command import Argument, Command, Given
from shoal.model.policy import Bind, Layers, Network, Policy
from shoal.sandboxes import seccomp
from shoal.sandboxes.bubblewrap import Bubblewrap
from shoal.sandboxes.view import MEMORY, MEMORY_BYTES
from tests.sandboxes.sandbox_runs import FIRST, SEARCH, SECONDS, TOKEN, Person, Ran, python, ran, started

pytestmark = pytest.mark.parametrize("who", FIRST, indirect=True, scope="module")

Part = tuple[Argument, ...]
Change = Callable[[Part], tuple[Part, ...]]

# How many words each option of bubblewrap's takes: an option that is not here fails every test of this file.
WORDS = {
    **dict.fromkeys(("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"), 0),
    **dict.fromkeys(("--unshare-net", "--disable-userns", "--new-session", "--die-with-parent", "--clearenv"), 0),
    **dict.fromkeys(("--hostname", "--cap-drop", "--cap-add", "--uid", "--gid", "--proc", "--dev", "--tmpfs"), 1),
    **dict.fromkeys(("--perms", "--size", "--remount-ro", "--chdir", "--args", "--seccomp", "--info-fd"), 1),
    **dict.fromkeys(("--symlink", "--file", "--bind", "--ro-bind", "--setenv"), 2),
}

NAMESPACES = ("user", "pid", "ipc", "uts", "net", "cgroup", "mnt")

# One probe per function; each gives an answer that differs when the flag that it stands for is gone.
PROBES = r"""
import ctypes, errno, json, os, socket, stat, sys
given = json.loads(sys.argv[1])
def tried(act):
    try:
        return act() or "done"
    except OSError as error:
        return errno.errorcode[error.errno]
def made(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
def created(folder):
    path = os.path.join(folder, "probe")
    outcome = tried(lambda: made(path))
    if outcome == "done":
        os.unlink(path)
    return outcome
def connected(family, address):
    with socket.socket(family) as client:
        client.settimeout(5)
        client.connect(address)
def text(path):
    with open(path) as file:
        return file.read()
def listed(path):
    return sorted(os.listdir(path))
def emptied(path):
    os.unlink(os.path.join(path, "deep/file"))
    os.rmdir(os.path.join(path, "deep"))
    os.mkdir(os.path.join(path, "deep"))
    return listed(os.path.join(path, "deep")) or "empty"
def memory(path):
    is_seen = os.path.exists(os.path.join(path, given["marker"]))
    size = os.statvfs(path).f_blocks * os.statvfs(path).f_frsize
    return [oct(stat.S_IMODE(os.stat(path).st_mode)), size, "the host's" if is_seen else "private"]
def copied(path):
    found = os.stat(path)
    is_copy = found.st_dev == os.stat("/").st_dev
    return [oct(stat.S_IMODE(found.st_mode)), "a copy" if is_copy else "the host's"]
def read_only(path):
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
def keyctl():
    if ctypes.CDLL(None, use_errno=True).syscall(250, 0, -3, 0) < 0:
        raise OSError(ctypes.get_errno(), "keyctl")
def nested():
    os.dup2(os.pipe()[1], 2)
    return "refused" if os.spawnlp(os.P_WAIT, "unshare", "unshare", "-U", "true") else "done"
HERE = {name: os.readlink("/proc/self/ns/" + name) for name in given["namespaces"]}
print(json.dumps({
    "namespaces": {name: "own" if HERE[name] != link else "the host's" for name, link in given["namespaces"].items()},
    "hostname": socket.gethostname(), "uid": os.getuid(), "gid": os.getgid(), "cwd": os.getcwd(),
    "session": "own" if os.getsid(0) else "the host's",
    "processes": "the host's" if os.path.exists("/proc/%d" % given["pid"]) else "own",
    "terminals": "the host's" if os.path.exists(given["terminal"]) else "own",
    "root": tried(lambda: made("/probe")), "dev": tried(lambda: made("/dev/probe")),
    "proc": tried(lambda: made("/proc/self/oom_score_adj")),
    "frames": {path: created(path) for path in given["frames"]},
    "memory": {path: memory(path) for path in given["memory"]},
    "copies": {path: tried(lambda: copied(path)) for path in given["copies"]},
    "links": {path: tried(lambda: os.readlink(path)) for path in given["links"]},
    "read_only": {path: tried(lambda: [read_only(path)]) for path in given["read_only"]},
    "covers": {path: tried(lambda: text(path)) for path in given["covers"]},
    "writes": {path: created(path) for path in given["writes"]},
    "environment": dict(word.split("=", 1) for word in text("/proc/self/environ").split("\0")[:-1]),
    "network": tried(lambda: connected(socket.AF_INET, ("127.0.0.1", given["port"]))),
    "abstract": tried(lambda: connected(socket.AF_UNIX, "\0" + given["abstract"])),
    "keyctl": tried(keyctl), "nested": nested(),
    "layers": {path: tried(lambda: emptied(path)) for path in given["layers"]},
}))
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """A box as an engine would make it, and what its probes are asked and should answer."""

    who: Person
    sandbox: Bubblewrap
    command: Command
    policy: Policy
    expected: Mapping[str, object]

    def parts(self) -> list[Part]:
        """Take the real argv apart: what comes before bubblewrap, its options, and the rest."""
        argv = self.sandbox.wrap(self.command, self.policy).argv
        at, end = argv.index(str(self.sandbox.bwrap)), argv.index("--", argv.index(str(self.sandbox.bwrap)))
        parts: list[Part] = [*_prefix(argv[:at]), argv[at : at + 1]]
        at += 1
        while at < end:
            words = 1 + WORDS[str(argv[at])]
            parts.append(argv[at : at + words])
            at += words
        return [*parts, argv[end:]]

    def role(self, part: Part) -> str:
        """Name a part by its option and by what its target is for: what the mutation list goes by."""
        option, target = str(part[0]), Path(str(part[-1]))
        covers = [cover.target for cover in self.policy.covers]
        match option:
            case "--ro-bind":
                return "--ro-bind " + (
                    "cover" if target in covers else "read" if target in self.policy.read else "system"
                )
            case "--tmpfs":
                return "--tmpfs memory" if target in MEMORY else "--tmpfs mask"
            case "--remount-ro":
                known = {"/": "root", "/proc": "proc", "/dev": "dev"}
                return f"--remount-ro {known.get(str(target), 'mask')}"
            case "--perms":
                return "--perms memory" if part[1] == "1777" else "--perms copy"
        return option

    def outcome(self, parts: list[Part]) -> Ran:
        """Run the box that *parts* make, with a variable in bubblewrap's own environment that no box may see."""
        argv = tuple(word for part in spelled(parts) for word in part)
        wrapped = self.sandbox.wrap(self.command, self.policy)
        return ran(replace(wrapped, argv=argv, env={**wrapped.env, "OUTSIDE": "seen"}), self.who)


def _prefix(argv: Part) -> list[Part]:
    """Take apart what comes before bubblewrap: the launcher's scope, the shell that mounts layers."""
    parts: list[Part] = []
    if "scope" in argv:
        end = argv.index("--") + 1
        parts, argv = [("scope", *argv[:end])], argv[end:]
    return [*parts, ("layers", *argv)] if argv else parts


def is_program(part: Part) -> bool:
    """Say whether a part is not an option of the wall's: bubblewrap itself, and what runs inside."""
    return part[0] == "--" or not (str(part[0]).startswith("--") or part[0] in ("scope", "layers"))


def spelled(parts: list[Part]) -> list[Part]:
    """Take the names off that `_prefix` gave."""
    return [part[1:] if part and part[0] in ("scope", "layers") else part for part in parts]


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
    return lambda _: (("--seccomp", Given(program)),)


def without_words(*gone: str) -> Change:
    """Take words out of what `--args` hands over."""

    def change(part: Part) -> tuple[Part, ...]:
        assert isinstance(part[1], Given)
        words = part[1].content.split(b"\0")[:-1]
        at = next(index for index in range(len(words)) if words[index : index + len(gone)] == [*map(os.fsencode, gone)])
        kept = words[:at] + words[at + len(gone) :]
        return ((part[0], Given(b"".join(word + b"\0" for word in kept))),)

    return change


def without_option(option: str) -> Change:
    """Take an option out of the ones that overlayfs is given."""
    return lambda part: (tuple(word.replace(option, "") if isinstance(word, str) else word for word in part),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A flag made weaker, and what shows it: *probe*'s answer changes, or the box says *refusal* and starts nothing.

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


@pytest.fixture(scope="module")
def stages(who: Person, bubblewrap: Bubblewrap) -> Iterator[dict[str, Stage]]:
    """Boxes as an engine makes them: shut, with the host's network, over layers, and for the seal."""
    with ExitStack() as stack:
        asked = stack.enter_context(_things_of_the_host())
        policy = _policy(who)
        yield {
            "shut": _stage(who, bubblewrap, policy, asked),
            "open": _stage(who, bubblewrap, replace(policy, network=Network.HOST), asked),
            "layered": _stage(who, bubblewrap, replace(policy, layers=_layers(who)), asked),
            "sealing": _stage(who, bubblewrap, replace(policy, capabilities=("CAP_DAC_READ_SEARCH",)), asked),
        }


@contextmanager
def _things_of_the_host() -> Iterator[dict[str, object]]:
    """Have something of the host's in every place that a broken wall would show."""
    with ExitStack() as stack:
        ours, theirs = os.openpty()
        stack.callback(os.close, ours)
        stack.callback(os.close, theirs)
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=512))
        abstract = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
        name = f"shoal-mutations-{os.getpid()}"
        abstract.bind(f"\0{name}")
        abstract.listen(512)
        marker = f"shoal-marker-{os.getpid()}"
        for folder in MEMORY:
            stack.enter_context(_file(folder / marker))
        yield {
            **{"pid": os.getpid(), "terminal": os.ttyname(theirs), "marker": marker, "abstract": name},
            **{"port": server.getsockname()[1], "memory": [*map(str, MEMORY)]},
            "namespaces": {name: str(Path("/proc/self/ns", name).readlink()) for name in NAMESPACES},
        }


@contextmanager
def _file(path: Path) -> Iterator[None]:
    path.touch()
    try:
        yield
    finally:
        path.unlink()


def _policy(who: Person) -> Policy:
    """Make what an engine names: objects to borrow, tools, a workspace with its pointer, folders of its own."""
    top = who.folder
    who.made("repo/.git/HEAD", "ref: refs/heads/main\n")
    read = (who.made("repo/.git/objects"), who.made("tools"))
    write = (who.made("space"), who.made("box/git"), who.made("box/own"))
    covers = {
        who.made("box/input/passwd", "agent:x:1000:1000::/:/bin/sh\n"): Path("/etc/passwd"),
        who.made("box/input/git", "gitdir: ours\n"): write[0] / ".git",
    }
    return Policy(
        token=TOKEN, read=read, write=write, hidden=(top / "repo/.git/HEAD",),
        covers=tuple(Bind(source, target) for source, target in covers.items()),
    )  # fmt: skip


def _layers(who: Person) -> Layers:
    who.made("layers/low/deep/file", "low")
    upper, work, target = (who.made(f"layers/{part}") for part in ("upper", "work", "view"))
    return Layers(lower=(who.folder / "layers/low",), upper=upper, work=work, target=target)


def _stage(who: Person, sandbox: Bubblewrap, policy: Policy, asked: Mapping[str, object]) -> Stage:
    root, top = sandbox.root, who.folder
    mounted = [path for path in (*root.folders, *root.etc) if path not in root.texts]
    covers = [cover.target for cover in policy.covers]
    lists = {
        "frames": [top],
        "links": [link.path for link in root.links],
        "copies": [path for path in root.texts if path not in covers],
        "read_only": [*mounted, *policy.read, *covers],
        "covers": covers,
        "writes": [*policy.write],
        "layers": [policy.layers.target] if policy.layers else [],
    }
    given = {**asked, **{key: [*map(str, paths)] for key, paths in lists.items()}}
    env = {"PATH": SEARCH, "MINE": "1"}
    command = Command(argv=python(PROBES, json.dumps(given)), cwd=policy.write[0], env=env)
    return Stage(who, sandbox, command, policy, _expected(policy, given, env, root.links))


def _expected(policy: Policy, given: dict[str, object], env: dict[str, str], links: object) -> dict[str, object]:
    """Say what the probes of a whole wall answer."""
    is_open = policy.network is Network.HOST

    def each(key: str, answer: object) -> dict[str, object]:
        paths = given[key]
        assert isinstance(paths, list)
        return dict.fromkeys(paths, answer)

    assert isinstance(links, tuple)
    texts = {str(cover.target): cover.source.read_text() for cover in policy.covers}
    return {
        **{"hostname": "shoal", "uid": 1000, "gid": 1000, "cwd": str(policy.write[0]), "session": "own"},
        **{"processes": "own", "terminals": "own", "root": "EROFS", "dev": "EROFS", "proc": "EROFS"},
        **{"environment": env, "keyctl": "EPERM", "nested": "refused", "report": True},
        "namespaces": {name: "own" if name != "net" or not is_open else "the host's" for name in NAMESPACES},
        "frames": each("frames", "EROFS"),
        "memory": each("memory", ["0o1777", MEMORY_BYTES, "private"]),
        "copies": each("copies", ["0o444", "a copy"]),
        "links": {str(link.path): link.text for link in links},
        "read_only": each("read_only", [True]),
        "covers": texts,
        "writes": each("writes", "done"),
        "network": "done" if is_open else "ECONNREFUSED",
        "abstract": "EPERM" if is_open else "ECONNREFUSED",
        "layers": each("layers", "empty"),
    }


def answers(done: Ran) -> dict[str, object]:
    """Read what the probes found; a box that did not start has no answers."""
    if not done.out:
        return {}
    found: dict[str, object] = json.loads(done.out)
    return {**found, "report": "child-pid" in done.info}


def survivor(stage: Stage, parts: list[Part], patience: float) -> str:
    """Kill the outer bubblewrap, and see whether anybody inside still answers after *patience*."""
    words = ("sh", "-c", "echo up; read -r word; echo $word")
    inside = stage.sandbox.wrap(replace(stage.command, argv=words), stage.policy).argv
    argv = (*(word for part in parts[:-1] for word in part), *inside[inside.index("--") :])
    with started(Command(argv=argv, cwd=Path("/"), env={"PATH": SEARCH}), stage.who) as (child, info):
        assert child.stdin
        assert child.stdout
        assert child.stdout.readline() == b"up\n"
        pidfd = os.pidfd_open(json.loads(os.read(info, 9999))["child-pid"])
        child.kill()
        is_over = select.select([pidfd], [], [], patience)[0]
        os.close(pidfd)
        if is_over:
            return "nobody"
        child.stdin.write(b"somebody\n")
        child.stdin.flush()
        return child.stdout.read().decode().strip()


def lowered(stage: Stage, mutation: Mutation) -> list[Part]:
    """Give the whole argv, in parts, with an empty filter where the mutation is to be seen beneath it."""
    empty = filtered(ALLOW_ALL)
    return [
        new
        for part in stage.parts()
        for new in (empty(part) if mutation.beneath and part[0] == "--seccomp" else (part,))
    ]


def mutated(stage: Stage, mutation: Mutation) -> Iterator[list[Part]]:
    """Give the argv, in parts, once for each place where the flag stands, or once for all of them."""
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


def test_every_flag_of_the_real_argv_has_a_mutation(stages: dict[str, Stage]) -> None:
    flags = {stage.role(part) for stage in stages.values() for part in stage.parts() if not is_program(part)}

    assert flags == {mutation.flag for mutation in MUTATIONS.values()}


def test_every_probe_stands_for_a_flag_and_answers_as_it_should(stages: dict[str, Stage]) -> None:
    for name, stage in stages.items():
        assert answers(stage.outcome(stage.parts())) == stage.expected, name
    assert survivor(stages["shut"], spelled(stages["shut"].parts()), SECONDS) == "nobody"

    asked = {mutation.probe for mutation in MUTATIONS.values() if mutation.probe}
    assert set(stages["shut"].expected) - asked == set()


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_weaker_wall_is_found(stages: dict[str, Stage], name: str) -> None:
    mutation = MUTATIONS[name]
    stage = stages[mutation.stage]

    for parts in mutated(stage, mutation):
        if mutation.probe == "survivor":
            assert survivor(stage, spelled(parts), 1.0) == "somebody"
            continue
        done = stage.outcome(parts)
        found = answers(done)
        if found:
            assert mutation.probe, f"nothing was refused: {done}"
            assert found[mutation.probe] != stage.expected[mutation.probe]
        else:
            assert mutation.refusal, done
            assert done.code != 0
            assert mutation.refusal in done.err


def test_user_namespaces_are_off_beneath_the_filter_too(stages: dict[str, Stage]) -> None:
    stage = stages["shut"]
    found = answers(stage.outcome(lowered(stage, MUTATIONS["user namespaces inside"])))

    assert found["nested"] == "refused"
