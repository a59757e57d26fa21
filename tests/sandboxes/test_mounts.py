"""What a sandbox shows: the order of mounts, refused paths, and that hidden paths do not exist."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import BadInput
from shoal.model.command import Argument, Command
from shoal.model.policy import Bind, Layers, Policy
from shoal.sandboxes.host import HostRoot, Link, host_root
from shoal.sandboxes.kind import Sandbox
from shoal.sandboxes.mounts import BareDirectory, View
from tests.sandboxes.sandbox_runs import SEARCH, TOKEN, Person, Ran, boxed, ran

ROOT = HostRoot(
    links=(Link(Path("/bin"), "usr/bin"),),
    folders=(Path("/usr"),),
    etc=(Path("/etc/hosts"), Path("/etc/ssl/certs")),
    resolver=(),
)


def view(
    read: tuple[str, ...] = (),
    write: tuple[str, ...] = (),
    hidden: tuple[str, ...] = (),
    cover: str | None = None,
) -> View:
    return View(
        Policy(
            read=tuple(map(Path, read)),
            write=tuple(map(Path, write)),
            hidden=tuple(map(Path, hidden)),
            covers=(Bind(Path("/frame"), Path(cover)),) if cover else (),
        ),
        ROOT,
    )


def own(shown: View) -> tuple[Argument, ...]:
    """Leave out what every sandbox shows."""
    common = len(View(Policy(), ROOT).argv) - 6
    return shown.argv[common:]


END = ("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/")


def test_parents_come_before_children_whatever_their_kind() -> None:
    shown = view(read=("/home/a/tools", "/h"), write=("/home/a/tools/w", "/a"))

    assert own(shown) == (
        *("--bind", "/a", "/a", "--ro-bind", "/h", "/h", "--ro-bind", "/home/a/tools", "/home/a/tools"),
        *("--bind", "/home/a/tools/w", "/home/a/tools/w"),
        *END,
    )


def test_what_is_shown_already_is_not_mounted_again() -> None:
    assert own(view(read=("/usr/lib/x", "/bin", "/bin/sh", "/usr", "/opt", "/opt/x", "/etc/hosts"))) == (
        *("--ro-bind", "/opt", "/opt"),
        *END,
    )


def test_a_cover_comes_last_and_replaces_what_the_host_has() -> None:
    assert own(view(write=("/w",), cover="/w/.git")) == (
        *("--bind", "/w", "/w", "--ro-bind", "/frame", "/w/.git"),
        *END,
    )
    assert "/etc/hosts /etc/hosts" not in " ".join(map(str, view(cover="/etc/hosts").argv))


def test_a_hidden_path_that_nothing_shows_needs_nothing() -> None:
    shown = view(write=("/home/a/repo/.shoal/w",), hidden=("/home/a/repo/.git/config", "/home/a", "/"))

    assert own(shown) == ("--bind", "/home/a/repo/.shoal/w", "/home/a/repo/.shoal/w", *END)
    assert shown.absent == (Path("/home/a/repo/.git/config"),)
    assert shown.bare == (
        BareDirectory(Path("/home/a"), ("repo",)),
        BareDirectory(Path("/"), ("bin", "usr", "etc", "proc", "dev", "tmp", "var", "home")),
    )


def test_a_hidden_path_below_a_shown_one_is_masked_with_its_folder() -> None:
    shown = view(
        read=("/usr/src/r/.git/objects",),
        write=("/usr/src/r/.shoal/w",),
        hidden=("/usr/src/r/.git/config", "/usr/src/r/.git/HEAD", "/usr/src/r/.shoal/ledger.db"),
    )

    assert own(shown) == (
        *("--tmpfs", "/usr/src/r/.git", "--ro-bind", "/usr/src/r/.git/objects", "/usr/src/r/.git/objects"),
        *("--tmpfs", "/usr/src/r/.shoal", "--bind", "/usr/src/r/.shoal/w", "/usr/src/r/.shoal/w"),
        *("--remount-ro", "/usr/src/r/.git", "--remount-ro", "/usr/src/r/.shoal", *END),
    )
    assert shown.bare == ()


def test_folders_that_lead_to_something_below_tmp_cannot_be_written() -> None:
    assert own(view(read=("/tmp/a/r/.git/objects",), write=("/tmp/a/r/w", "/tmp/b"))) == (
        *("--tmpfs", "/tmp/a", "--ro-bind", "/tmp/a/r/.git/objects", "/tmp/a/r/.git/objects"),
        *("--bind", "/tmp/a/r/w", "/tmp/a/r/w", "--bind", "/tmp/b", "/tmp/b", "--remount-ro", "/tmp/a"),
        *END,
    )


def test_one_mask_is_enough() -> None:
    assert own(view(hidden=("/usr/src/r", "/usr/src/r/.git/config"))) == (
        *("--tmpfs", "/usr/src", "--remount-ro", "/usr/src"),
        *END,
    )


@pytest.mark.parametrize(
    "wanted",
    [
        {"read": ("relative",)},
        {"read": ("/a/../etc/shadow",)},
        {"read": ("/",)},
        {"read": ("/etc",)},
        {"read": ("/etc/ssl",)},
        {"read": ("/proc/1",)},
        {"read": ("/tmp",)},
        {"write": ("/usr",)},
        {"write": ("/bin/x",)},
        {"write": ("/dev/disk",)},
        {"write": ("/w", "/w/cache")},
        {"read": ("/w/tools",), "write": ("/w",)},
        {"read": ("/a",), "hidden": ("/a",)},
        {"hidden": ("/usr",)},
        {"hidden": ("/usr/x",)},
        {"read": ("/a",), "hidden": ("/a/x",)},
        {"write": ("/w",), "hidden": ("/w/x/y",)},
        {"write": ("/w",), "cover": "/w/.claude/settings.json"},
        {"write": ("/w",), "cover": "/w/x/.git"},
        {"read": ("/r",), "cover": "/r/x"},
        {"write": ("/home/a/w",), "cover": "/home/a"},
    ],
)
def test_contradictions_and_dangerous_targets_are_refused(wanted: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(BadInput):
        view(**wanted)  # type: ignore[arg-type]


def test_layers_are_shown_writable_only_with_an_upper() -> None:
    target, low = Path("/w"), (Path("/l"), Path("/m"))
    writable = Policy(layers=Layers(lower=low, upper=Path("/u"), work=Path("/k"), target=target))
    sealed = Policy(read=(target,), layers=Layers(lower=low, upper=None, work=None, target=target))

    assert own(View(writable, ROOT))[:3] == ("--bind", "/w", "/w")
    assert own(View(sealed, ROOT))[:3] == ("--ro-bind", "/w", "/w")


def test_the_hosts_root_is_seen_as_it_is(tmp_path: Path) -> None:
    for folder in ("usr/bin", "lib32", "etc/ssl/certs", "etc/ssl/private", "etc/java-17"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("hosts", "shadow", "passwd", "gitconfig"):
        (tmp_path / "etc" / name).touch()
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "etc/localtime").symlink_to("nowhere")
    (tmp_path / "etc/os-release").symlink_to("../usr/bin")

    found = host_root(tmp_path)

    assert found.links == (Link(tmp_path / "bin", "usr/bin"), Link(tmp_path / "etc/os-release", "../usr/bin"))
    assert found.folders == (tmp_path / "lib32", tmp_path / "usr")
    assert {path.relative_to(tmp_path / "etc").as_posix() for path in found.etc} == {"hosts", "ssl/certs", "java-17"}
    assert found.resolver == ()


def test_hidden_paths_do_not_exist_inside(who: Person, bubblewrap: Sandbox) -> None:
    secret, tools = who.made("home/.ssh/key", "secret"), who.made("home/tools/bin/x", "tool")
    policy = Policy(read=(tools.parent.parent,), hidden=(secret, who.folder / "home", who.folder))

    script = 'touch "$1/x" "$1/home/x"; find "$1" -mindepth 1 -maxdepth 2'
    done = boxed(bubblewrap, who, ("sh", "-c", script, "sh", str(who.folder)), policy)

    shown = ("home", "home/tools", "work")
    assert {Path(line) for line in done.out.split()} == {who.folder / name for name in shown}
    assert done.said.count("Read-only file system") == 2


def test_a_broken_hiding_is_found(who: Person, bubblewrap: Sandbox) -> None:
    """Bound on purpose, bypassing the policy: by a mount over the sandbox's own, after everything else."""
    home = who.made("broken/.ssh/key", "secret").parent.parent
    tools = who.made("broken/tools")
    for hidden in (home / ".ssh/key", home):
        done = bind_too(who, bubblewrap, Policy(read=(tools,), hidden=(hidden,)), home / ".ssh")

        assert (done.code, done.out) == (125, "")
        assert done.err.startswith(f"shoal-wall-broken {TOKEN} hidden {home}/.ssh")


def bind_too(who: Person, sandbox: Sandbox, policy: Policy, path: Path) -> Ran:
    command = Command(argv=("echo", "reached"), cwd=Path("/"), env={"PATH": SEARCH})
    wrapped = sandbox.wrap(command, replace(policy, token=TOKEN))
    at = wrapped.argv.index("--remount-ro")
    argv = (*wrapped.argv[:at], "--ro-bind", str(path), str(path), *wrapped.argv[at:])
    return ran(replace(wrapped, argv=argv), who)


@pytest.fixture
def source(who: Person) -> Iterator[Path]:
    """A folder below /usr, which only root can make."""
    if os.geteuid() != 0:
        # An ordinary user has none there: any folder then stands for it, and nothing of it may be seen either.
        yield Path(tempfile.mkdtemp(prefix="shoal-"))
        return
    folder = Path(tempfile.mkdtemp(prefix="shoal-", dir="/usr/src"))
    os.chown(folder, who.uid, who.uid)
    yield folder
    shutil.rmtree(folder)


def test_a_repository_below_usr_is_masked(who: Person, bubblewrap: Sandbox, source: Path) -> None:
    (source / ".git/objects").mkdir(parents=True)
    (source / ".git/config").touch()
    (source / ".git/objects/o").touch()
    (source / ".shoal/w").mkdir(parents=True)
    (source / ".shoal/ledger.db").touch()
    os.chown(source / ".shoal/w", who.uid, who.uid)
    policy = Policy(
        read=(source / ".git/objects",),
        write=(source / ".shoal/w",),
        hidden=(source / ".git/config", source / ".shoal/ledger.db"),
    )
    script = f"cd {source}; echo yes > .shoal/w/x; touch .git/y .shoal/y; find . -mindepth 1 | sort"

    done = boxed(bubblewrap, who, ("sh", "-c", script), policy)

    assert done.out.split() == [
        "./.git",
        "./.git/objects",
        "./.git/objects/o",
        "./.shoal",
        "./.shoal/w",
        "./.shoal/w/x",
    ]
    assert done.said.count("Read-only file system") == 2
    assert (source / ".shoal/w/x").read_text() == "yes\n"
