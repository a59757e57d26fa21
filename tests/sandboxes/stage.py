"""A sandbox like a session's, its argv in parts, and something of the host wherever a broken sandbox would show it."""

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.model.command import Argument, Command
from shoal.model.policy import Bind, Layers, Policy
from shoal.sandboxes.bubblewrap import Bubblewrap
from shoal.sandboxes.kind import MAX_USER_SHARE
from shoal.sandboxes.mounts import MEMORY
from tests.sandboxes.probes import NAMESPACES, PROBES, expected
from tests.sandboxes.sandbox_runs import SEARCH, TOKEN, Person, Ran, python, ran

Part = tuple[Argument, ...]

# How many words each option of bubblewrap's takes: an option that is not here fails every test of mutations.
WORDS = {
    **dict.fromkeys(("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"), 0),
    **dict.fromkeys(("--unshare-net", "--disable-userns", "--new-session", "--die-with-parent", "--clearenv"), 0),
    **dict.fromkeys(("--hostname", "--cap-drop", "--cap-add", "--uid", "--gid", "--proc", "--dev", "--tmpfs"), 1),
    **dict.fromkeys(("--perms", "--size", "--remount-ro", "--chdir", "--args", "--seccomp", "--info-fd"), 1),
    **dict.fromkeys(("--symlink", "--file", "--bind", "--ro-bind", "--dev-bind", "--setenv"), 2),
}


@dataclass(frozen=True, slots=True)
class Stage:
    """A sandbox like a session's, with the questions for its probes and the expected answers."""

    who: Person
    sandbox: Bubblewrap
    command: Command
    policy: Policy
    expected: Mapping[str, object]

    def parts(self) -> list[Part]:
        """Split the real argv: what comes before bubblewrap, its options, and the rest."""
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
        """Name a part by its option and the purpose of its target, as the list of mutations does."""
        option, target = str(part[0]), Path(str(part[-1]))
        covers = [cover.target for cover in self.policy.covers]
        match option:
            case "--ro-bind" if target.is_relative_to("/proc"):
                return "--ro-bind closed"
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
        """Run the sandbox of *parts*, with a variable in bubblewrap's own environment that must not be visible inside."""
        argv = tuple(word for part in spelled(parts) for word in part)
        wrapped = self.sandbox.wrap(self.command, self.policy)
        return ran(replace(wrapped, argv=argv, env={**wrapped.env, "OUTSIDE": "seen"}), self.who)


def _prefix(argv: Part) -> list[Part]:
    """Split what comes before bubblewrap: the launcher's scope, the shell that mounts layers."""
    parts: list[Part] = []
    if argv and Path(str(argv[0])).name == "prlimit":  # `test_kernel_calls` shows what it holds
        argv = argv[1 + len(MAX_USER_SHARE) :]
    if "scope" in argv:
        end = argv.index("--") + 1
        parts, argv = [("scope", *argv[:end])], argv[end:]
    return [*parts, ("layers", *argv)] if argv else parts


def is_program(part: Part) -> bool:
    """Return whether a part is not one of our options: bubblewrap itself, and what runs inside."""
    return part[0] == "--" or not (str(part[0]).startswith("--") or part[0] in ("scope", "layers"))


def spelled(parts: list[Part]) -> list[Part]:
    """Take the names off that `_prefix` gave."""
    return [part[1:] if part and part[0] in ("scope", "layers") else part for part in parts]


@contextmanager
def things_of_the_host() -> Iterator[dict[str, object]]:
    """Put something of the host in every place that a broken sandbox would show."""
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


def policy_of(who: Person) -> Policy:
    """Make the policy of a session: objects to borrow, tools, a workspace with its pointer, private folders."""
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


def layers_of(who: Person) -> Layers:
    who.made("layers/low/deep/file", "low")
    upper, work, target = (who.made(f"layers/{part}") for part in ("upper", "work", "view"))
    return Layers(lower=(who.folder / "layers/low",), upper=upper, work=work, target=target)


def stage_of(who: Person, sandbox: Bubblewrap, policy: Policy, asked: Mapping[str, object]) -> Stage:
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
        "devices": [Path("/dev", path.name) for path in root.devices],
        "closed": [*root.closed],
    }
    given = {**asked, **{key: [*map(str, paths)] for key, paths in lists.items()}}
    env = {"PATH": SEARCH, "MINE": "1"}
    command = Command(argv=python(PROBES, json.dumps(given)), cwd=policy.write[0], env=env)
    return Stage(who, sandbox, command, policy, expected(policy, given, env, root.links))
