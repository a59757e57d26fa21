"""Attacks on the file system: links, pipes, names, other people's files, and the mounts themselves."""

import asyncio
import contextlib
import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.model.status import Status
from tests.acting import assert_nothing_left, fingerprint, paths_in, ran, shown, step
from tests.conftest import git
from tests.escapes.looking import found, looking
from tests.escapes.scene import Scene

STRATEGIES = ["overlay", "worktree"]
SECRETS = (".ssh/id_rsa", ".aws/credentials", ".config/gh/hosts.yml", ".netrc", ".git-credentials", ".env")
SHUT = {"bubblewrap": {"ENOENT"}, "landlock": {"EACCES"}}
NOT_MADE = {"bubblewrap": {"ENOENT", "EROFS"}, "landlock": {"EACCES"}}


def strategies(scene: Scene, strategy: str) -> str:
    """In the fallback sandbox, the host mounts an overlay, which only root may."""
    return strategy if scene.is_walled else "auto"


@pytest.mark.deep
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_links_that_are_left_for_the_next_agent_lead_nowhere(scene: Scene, strategy: str) -> None:
    """B3.24: whatever the next session's set-up makes or mounts, it does not follow what the last one planted."""
    ssh = scene.home / ".ssh"
    plant = f"""
    for place in .cache .config .local .git.d tmp data; do rm -rf $place; ln -s /oldroot{ssh} $place; done
    for place in $HOME/.cache $HOME/.config $HOME/.local $HOME/.gitconfig $HOME $TMPDIR; do
      rm -rf $place; ln -s /oldroot{ssh} $place || ln -s {ssh} $place/planted
    done
    d=$(git rev-parse --git-dir); rm -rf $d/objects/info $d/info; ln -s {ssh} $d/info; ln -s {ssh} $d/objects/info
    rm -rf .git; ln -s {ssh} .git
    """
    attack = await scene.attacked(plant, strategy=strategies(scene, strategy))

    follow = "mkdir -p .cache/x .config/x tmp/x $HOME/.cache/x; echo canary > .cache/canary; echo ok > ok"
    base = attack.result.branch or "HEAD"
    report = await ran(
        scene.repo, step("next", follow), strategy=strategies(scene, strategy), sandbox=scene.wall, base=base
    )

    assert attack.result.branch, attack.result
    assert shown(scene.repo, report.steps[0].worker_results[0], "ok") == "ok"
    assert sorted(os.listdir(ssh)) == ["id_rsa"]
    scene.assert_held(report)
    await scene.looked_after(attack)


async def test_links_come_as_links_and_never_as_what_they_lead_to(scene: Scene) -> None:
    """B3.25: absolute and relative, to files of the user's and of the kernel's; nothing behind them is read."""
    key = scene.home / ".ssh/id_rsa"
    script = f"""
    ln -s {key} result.json; ln -s /proc/self/environ log; ln -s /dev/zero zero; ln -s / root
    up=$(echo $PWD | sed 's:[^/]*:..:g'); ln -s ..$up{key} relative; mkdir deep; ln -s ../../../../README.md deep/up
    ln -s {scene.repo}/.git/config d0/config; ln -s loop loop; rm README.md; ln -s {key} README.md
    """
    attack = await scene.attacked(script)

    assert attack.result.branch
    modes = {
        line.split("\t")[1]: line.split()[0]
        for line in git(scene.repo, "ls-tree", "-r", attack.result.branch).splitlines()
    }
    links = {"result.json", "log", "zero", "root", "relative", "deep/up", "d0/config", "loop", "README.md"}
    assert {name for name, mode in modes.items() if mode == "120000"} == links
    assert shown(scene.repo, attack.result, "result.json") == str(key)
    assert scene.secret.encode() not in _said(scene, "cat-file", "--batch", "--batch-all-objects", "--unordered")
    await scene.looked_after(attack)


async def test_pipes_and_sockets_hold_nobody_up_and_are_named(scene: Scene) -> None:
    """B3.26: where a file is expected, in the tree, in the gitdir and in HOME."""
    script = """
    mkfifo "$(printf 'a\\ntip 0')"; mkfifo result.json .gitignore; rm README.md; mkfifo README.md; mkdir sub; mkfifo sub/.gitattributes
    python3 -c 'import os, stat; os.mknod("socket", stat.S_IFSOCK | 0o600)'
    d=$(git rev-parse --git-dir); rm -f $d/HEAD $d/config; mkfifo $d/HEAD $d/config $d/objects/info/x $HOME/.netrc
    rm -rf $HOME/.gitconfig; mkfifo $HOME/.gitconfig; echo w > w
    """
    async with asyncio.timeout(60):
        attack = await scene.attacked(script)

    if scene.is_walled:
        assert shown(scene.repo, attack.result, "w") == "w"
        named = {"result.json", "README.md", "socket", "sub/.gitattributes", "a?tip 0"}
        assert named <= set(attack.result.unkept)
        assert paths_in(scene.repo, attack.result) & {"result.json", "socket", ".gitignore"} == set()
    else:  # git's own rules cannot be fed from there: told at once, and the files stay
        assert attack.result.status is Status.FAILED
        assert "a pipe stands where" in str(attack.result.error)
        assert list(Path(str(attack.result.raw)).rglob("w")) or Path(attack.result.workspace, "w").exists()


NAMES = (b"-rf", b"a\nb", b"\x1b[2Jx", b"\xff\xfe", b"n" * 255, "‮gpj.exe".encode(), b"CON", b"--help", b"$(id)", b" ")


async def test_no_name_is_taken_for_anything_else(scene: Scene) -> None:
    """B3.28: kept byte for byte, shown escaped, cleaned up."""
    script = looking(
        """
        for name in given["names"]:
            with open(bytes.fromhex(name), "w") as file:
                file.write("kept")
        os.mkdir(b"-d\\n")
        open(b"-d\\n/\\x1b]0;t\\x07", "w").close()
        """.replace("\n        ", "\n"),
        names=[name.hex() for name in NAMES],
    )
    attack = await scene.attacked(script)

    assert attack.result.status is Status.SUCCEEDED, attack.result
    assert attack.result.unkept == ()
    assert {os.fsdecode(name) for name in NAMES} <= _raw_paths(scene, attack.result.branch)
    assert "\x1b" not in repr(attack.report)
    await scene.looked_after(attack)


def _raw_paths(scene: Scene, branch: str | None) -> set[str]:
    names = _said(scene, "ls-tree", "-r", "--name-only", "-z", str(branch)).split(b"\0")
    return {os.fsdecode(name) for name in names}


def _said(scene: Scene, *words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=scene.repo, capture_output=True, check=True).stdout


FILES = r"""
repo, home, coordinator = given["repo"], given["home"], given["pid"]
top = os.path.dirname(os.path.dirname(os.environ["SHOAL_WORKSPACE_PATH"]))
other = os.path.join(top, "good", "worker_0")
boxes = os.path.dirname(os.path.dirname(os.path.dirname(os.environ["HOME"])))
deadline = time.monotonic() + 3
while not os.path.exists(other) and not given["is_walled"] and time.monotonic() < deadline:
    time.sleep(0.01)
def link(path):
    return tried(lambda: os.link(path, "stolen"))
def inotify(path):
    return call(254, libc.inotify_init(), path.encode(), 0xFFF)
lender = open(os.popen("git rev-parse --git-path objects/info/alternates").read().strip()).readline().strip()
objects = [os.path.join(here, name) for here, _, names in os.walk(lender) for name in names]
print(json.dumps({
    "secrets": {path: read(os.path.join(home, path)) for path in given["secrets"]},
    "project": {path: read(os.path.join(repo, path)) for path in (".env", "README.md", ".git/config", ".shoal/ledger.db")},
    "written": {path: write(path) for path in given["written"]},
    "linked": {path: link(path) for path in ("/usr/bin/su", "/etc/passwd", *objects[:1], home + "/.ssh/id_rsa")},
    "overwritten": {path: write(path) for path in objects[:3]},
    "other": [tried(lambda: os.listdir(other)), read(other + "/README.md"), write(other + "/README.md"),
              tried(lambda: os.rename(other, "mine")), tried(lambda: os.listdir(os.path.join(top, "good")))],
    "watched": inotify(other), "boxes": tried(lambda: os.listdir(boxes) == [os.environ["SHOAL_SESSION"]] or os.stat("/none")),
}))
"""


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_nobody_elses_files_can_be_read_written_or_linked(scene: Scene, strategy: str) -> None:
    """B3.27, B3.29, B3.30, B3.31."""
    (scene.repo / ".env").write_text(scene.secret)
    git(scene.repo, "config", "core.excludesFile", str(scene.home / "ignored"))
    (scene.home / "ignored").write_text(".env\n")
    marks = [Path(folder) / f"shoal-{os.getpid()}-{scene.wall}" for folder in ("/tmp", "/var/tmp", "/dev/shm")]
    theirs = [scene.home / ".bashrc", scene.repo / "x", scene.repo / ".shoal/x", scene.repo / ".git/hooks/post-merge"]
    script = looking(
        FILES, repo=str(scene.repo), home=str(scene.home), secrets=SECRETS, pid=os.getpid(),
        written=[*map(str, (*marks, *theirs))], is_walled=scene.is_walled,
    )  # fmt: skip
    scene = replace(scene, before=fingerprint(scene.repo))  # with what this test itself has put there
    attack = await scene.attacked(script, strategy=strategies(scene, strategy))
    facts = found(attack.result)

    assert set(facts["secrets"].values()) <= SHUT[scene.wall]
    assert set(facts["project"].values()) <= SHUT[scene.wall]
    assert {facts["written"][str(path)] for path in theirs} <= NOT_MADE[scene.wall]
    assert {facts["written"][str(path)] for path in marks} == ({"done"} if scene.is_walled else {"EACCES"})
    assert not [path for path in (*marks, *theirs) if path.exists()]
    assert set(facts["linked"].values()) <= {"EXDEV", "EPERM", "EACCES", "ENOENT"}
    assert set(facts["overwritten"].values()) <= {"EROFS", "EACCES"}
    assert facts["overwritten"]
    assert set(facts["other"]) <= {*SHUT[scene.wall], "EXDEV", "ENOENT"}  # the other one may have ended meanwhile
    assert facts["boxes"] == ("done" if scene.is_walled else "EACCES")
    if scene.is_walled:
        assert facts["watched"] == "ENOENT"
    else:  # Landlock does not know of watching: that a file exists can be seen, and is said
        assert any("which files exist" in note for note in attack.report.notes)


KERNEL = r"""
coordinator = given["pid"]
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
NEWUSER, NEWNS = 0x10000000, 0x00020000
def cgroup(name):
    return [write(os.path.join(here, name)) for here, _, names in os.walk("/sys/fs/cgroup") if name in names][:9]
print(json.dumps({
    "calls": {
        "remount": call(165, b"none", b"/", b"", 4096 | 32, 0), "remount rw": call(165, b"none", b"/usr", b"", 32, 0),
        "proc": call(165, b"proc", b"/proc", b"proc", 0, 0), "umount": call(166, b"/usr", 2),
        "umount git": call(166, b".git", 2), "pivot_root": call(155, b".", b"."), "chroot": call(161, b"."),
        "unshare": call(272, NEWUSER | NEWNS), "clone": call(56, NEWUSER | 17, 0), "setns": call(308, 0, 0)},
    "clone3": call(435, 0, 0),
    "programs": {words: program(*words.split()) for words in (
        "mount -o remount,rw,bind /", "umount /usr", "unshare -Urm true", "mount -t proc proc /proc", "sudo -n true",
        "su -c true", "pkexec true", "newuidmap 1 0 0 1", "nsenter -t 1 -a true", "chroot / true")},
    "caps": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")],
    "bound": status["CapBnd"], "rest": [status["NoNewPrivs"], status["Seccomp"]],
    "kernel": {path: write(path) for path in (
        "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger", "/proc/self/uid_map",
        "/sys/kernel/uevent_helper", "/proc/%d/mem" % coordinator, "/proc/%d/oom_score_adj" % coordinator)},
    "oom": tried(lambda: open("/proc/self/oom_score_adj", "w").write("-1000")),
    "release_agent": cgroup("release_agent"), "procs": cgroup("cgroup.procs"),
}))
"""


async def test_mounts_and_the_kernels_own_files_are_out_of_reach(scene: Scene) -> None:
    """B3.32, B3.33, B3.34, B3.35."""
    attack = await scene.attacked(looking(KERNEL, pid=os.getpid()))
    facts = found(attack.result)

    assert set(facts["calls"].values()) == {"EPERM"}, facts["calls"]
    assert facts["clone3"] == "ENOSYS"
    assert 0 not in facts["programs"].values(), facts["programs"]
    assert facts["caps"] == ["0" * 16] * 4
    assert facts["bound"] == "0" * 16 or (not scene.is_walled and os.geteuid() != 0)
    assert facts["rest"] == ["1", "2"]
    assert set(facts["kernel"].values()) <= {"EROFS", "ENOENT", "EACCES", "EPERM"}, facts["kernel"]
    assert facts["oom"] in ("EROFS", "EACCES")
    assert set(facts["release_agent"]) | set(facts["procs"]) <= {"EACCES"}
    assert not scene.is_walled or facts["procs"] == []


async def test_a_socket_in_the_tree_is_not_taken_in(scene: Scene) -> None:
    """B3.26: one that somebody listens on, while the seal looks at it."""
    script = looking(
        """
        os.chdir(os.environ["SHOAL_WORKSPACE_PATH"])
        open("w", "w").write("w")
        outcome = tried(lambda: socket.socket(socket.AF_UNIX).bind("listens"))
        print(json.dumps({"bound": outcome}))
        """.replace("\n        ", "\n")
    )
    attack = await scene.attacked(script)

    assert shown(scene.repo, attack.result, "w") == "w"
    # In the fallback sandbox, no socket can be created without a network.
    assert found(attack.result)["bound"] == ("done" if scene.is_walled else "EACCES")
    assert attack.result.unkept == (("listens",) if scene.is_walled else ())
    assert_nothing_left(scene.repo)


def test_the_attacks_on_files_work_where_there_is_no_wall(scene: Scene, tmp_path: Path) -> None:
    """The same attacks, outside: reading a key, linking an object, leaving a pipe that blocks a reader."""
    assert (scene.home / ".ssh/id_rsa").read_text() == scene.secret
    (tmp_path / "link").symlink_to(scene.home / ".ssh/id_rsa")
    assert (tmp_path / "link").read_text() == scene.secret
    source = next(path for path in (scene.repo / ".git/objects").rglob("*") if path.is_file())
    os.link(source, tmp_path / "stolen")
    assert (tmp_path / "stolen").stat().st_ino == source.stat().st_ino
    os.mkfifo(tmp_path / "pipe")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(tmp_path / "socket"))
    with pytest.raises(BlockingIOError):
        os.read(os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK), 1)
