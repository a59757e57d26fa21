"""What every kind of enforcement promises, and how each implements it."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import Broken
from shoal.limits.cgroup1 import DIALECT as DIALECT1
from shoal.limits.cgroup2 import DIALECT as DIALECT2
from shoal.limits.cgroup2 import cgroup2
from shoal.limits.cgroup_files import CgroupFiles, LimitsHost, find_hierarchies
from shoal.limits.cgroups import Fleet, is_left_on_disk, is_orphan, start_ticks
from shoal.limits.choose import choose
from shoal.limits.group import Dialect, KernelGroup
from shoal.limits.kind import Enforcer, ResourceUsage
from shoal.limits.systemd import Systemd, systemd, trial
from shoal.model.command import InheritedBytes, ReportPipe
from shoal.model.limits import ResourceLimits
from tests.limits.limit_runs import ENV, FRESH, LIVE, ROOMY, FakeKernel, live, on_files, ran, shell, unified


@pytest.fixture(params=[*LIVE, "files"])
def enforcer(request: pytest.FixtureRequest, tmp_path: Path) -> Enforcer:
    return on_files(tmp_path) if request.param == "files" else live(request.param)


async def test_a_wrapped_command_is_the_same_command(enforcer: Enforcer) -> None:
    script = 'echo "$1|$WORD|$0"; cat; cat "/proc/self/fd/$2"; exit 7'
    command = replace(shell(script, WORD="a b"), stdin=b"said ")
    command = replace(command, argv=(*command.argv, "name", "$(x) '", InheritedBytes(b"given")))

    with enforcer.group("same", ROOMY) as group:
        done = await ran(group, command)

    assert done.exit.code == 7
    assert done.stdout == b"$(x) '|a b|name\nsaid given"


def test_wrapping_keeps_what_becomes_a_descriptor(enforcer: Enforcer) -> None:
    command = replace(shell(""), argv=("/bin/true", ReportPipe("info"), InheritedBytes(b"x")))

    with enforcer.group("kept", ROOMY) as group:
        wrapped = group.wrap(command)

    assert wrapped.argv[-3:] == command.argv
    assert (wrapped.cwd, wrapped.env, wrapped.stdin) == (command.cwd, command.env, command.stdin)


async def test_who_keeps_to_the_limits_breaches_none(enforcer: Enforcer) -> None:
    with enforcer.group("good", ROOMY) as group:
        assert group.breach() is None
        await ran(group, shell("for i in 1 2 3; do sleep 0 & done; wait"))

        assert group.breach() is None

    assert group.breach() is None
    assert isinstance(group.usage(), ResourceUsage)
    assert group.pids() == ()
    assert group.name == "good"


async def test_a_name_can_be_had_again(enforcer: Enforcer) -> None:
    for _ in range(2):
        with enforcer.group("again", ResourceLimits()) as group:
            assert (await ran(group, shell("true"))).ok
    with enforcer.group("free", ResourceLimits.of(dict.fromkeys(("memory_mb", "cpu_percent", "pids")))) as group:
        assert (await ran(group, shell("true"))).ok


def test_what_is_not_held_is_said(enforcer: Enforcer) -> None:
    for name in {"memory", "cpu", "pids"} - enforcer.holds:
        assert any(gap.startswith(f"{name} is not enforced") for gap in enforcer.gaps)
    assert enforcer.holds_fleet <= enforcer.holds
    enforcer.sweep()


def test_version_2_sets_every_limit_and_reads_the_kernel_s_counters(tmp_path: Path) -> None:
    enforcer = on_files(tmp_path)

    with enforcer.group("one", ResourceLimits(memory_mb=64, cpu_percent=150, pids=20)) as group:
        (folder,) = group.places
        fleet = folder.parent
        values = {name: (folder / name).read_text() for name in FRESH if name.endswith(("max", "group"))}
        usage = group.usage()
        (folder / "pids.events").write_text("max 3\n")
        bombed = group.breach()
        (folder / "memory.events").write_text("oom 2\noom_kill 2\noom_group_kill 1\n")
        hogged = group.breach()
        group.kill()
        killed = (folder / "cgroup.kill").read_text()

    assert values == {
        "memory.max": str(64 << 20),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "cpu.max": "150000 100000",
        "pids.max": "20",
    }
    assert usage == ResourceUsage(memory_peak_bytes=4096, cpu_seconds=1.5, pids=0, forks_refused=0)
    assert (bombed, hogged, group.breach(), killed) == ("pids", "memory", "memory", "1")
    assert group.usage().forks_refused == 3
    assert fleet.parent == tmp_path / "unified"
    assert not fleet.exists()


@pytest.mark.parametrize(("handed", "holds"), [("pids hugetlb", None), ("memory pids", {"memory", "pids"})])
def test_version_2_needs_a_group_that_hands_its_controllers_down(
    tmp_path: Path, handed: str, holds: set[str] | None
) -> None:
    hierarchies, kernel = unified(tmp_path), FakeKernel(handed)
    (tmp_path / "unified/cgroup.subtree_control").write_text(handed)

    found = cgroup2(hierarchies, kernel)

    assert (found.holds if found else None) == holds


async def test_joining_is_by_builtins_and_a_failed_one_runs_nothing(tmp_path: Path) -> None:
    enforcer = on_files(tmp_path)

    with enforcer.group("one", ROOMY) as group:
        await ran(group, shell("true", PATH="/nowhere"))
        joined = (group.places[0] / "cgroup.procs").read_text()
        (group.places[0] / "cgroup.procs").unlink()
        (group.places[0] / "cgroup.procs").mkdir()
        done = await ran(group, shell("echo ran"))
        (group.places[0] / "cgroup.procs").rmdir()

    assert joined == "0\n"
    assert (done.exit.code, done.stdout) == (125, b"")


def test_a_group_that_cannot_be_made_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    enforcer = on_files(tmp_path)

    with enforcer.group("one", ROOMY) as group:
        fleet = group.places[0].parent
        (fleet / "two-2").mkdir()
        with pytest.raises(Broken, match="limits of two cannot be set up"), enforcer.group("two", ROOMY):
            pass

    assert not fleet.exists()


def test_a_scope_is_spelled_for_systemd(tmp_path: Path) -> None:
    said = f"{tmp_path}/app.slice/shoal-trial.scope\n{64 << 20}\n-\n64\n"
    enforcer = systemd(said, CgroupFiles())
    assert isinstance(enforcer, Systemd)

    with enforcer.group("one", ResourceLimits(memory_mb=64, cpu_percent=12.5, pids=20)) as group:
        wrapped = group.wrap(shell("true"))

    unit = wrapped.argv[5]
    assert isinstance(unit, str)
    assert wrapped.argv == (
        *("/usr/bin/systemd-run", "--user", "--scope", "--quiet", "--collect", unit),
        *("-p", f"MemoryMax={64 << 20}", "-p", "MemorySwapMax=0", "-p", "TasksMax=20", "-p", "CPUQuota=12.5%"),
        *("--", "/bin/sh", "-c", "true"),
    )
    assert unit.startswith("--unit=shoal-one-")
    assert wrapped.env == {**ENV, "XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}"}
    assert enforcer.holds == {"memory", "pids"}
    assert enforcer.gaps[0].startswith("cpu is not enforced")
    assert group.breach() is None


def test_the_last_look_at_a_scope_is_kept(tmp_path: Path) -> None:
    enforcer = Systemd(tmp_path, frozenset({"memory"}), FakeKernel())

    with enforcer.group("one", ROOMY) as group:
        (folder,) = group.places
        FakeKernel().make(folder)
        (folder / "memory.events").write_text("oom_kill 1")
        assert (group.breach(), group.usage().cpu_seconds) == ("memory", 1.5)
        FakeKernel().remove(folder)

        assert (group.breach(), group.usage().cpu_seconds) == ("memory", 1.5)


@pytest.mark.parametrize("said", ["", "/x/y.scope\n", "/x/y.scope\nmax\nmax\nmax\n", "nonsense"])
def test_a_trial_of_systemd_that_held_no_memory_is_no_enforcement(said: str) -> None:
    assert systemd(said, CgroupFiles()) is None
    assert trial(None) is None


async def test_the_best_that_works_is_chosen(tmp_path: Path) -> None:
    best = await choose(host=LimitsHost(hierarchies=unified(tmp_path), files=FakeKernel()))

    assert best.name == "cgroup2"
    assert (await choose()).name == live(LIVE[0]).name
    assert (await choose("polling")).name == "polling"


def test_a_fleet_is_known_by_its_coordinator() -> None:
    ours = Fleet.ours()
    dead = replace(ours, started=ours.started - 1)

    assert not is_orphan(ours.name)
    assert is_orphan(dead.name)
    assert not is_orphan(replace(dead, namespace=1).name)
    before_boot = replace(ours, boot="0a1b2c3d", namespace=1).name
    assert (is_orphan(before_boot), is_left_on_disk(before_boot)) == (False, True)
    assert [is_left_on_disk(name) for name in (ours.name, dead.name)] == [False, True]
    assert not is_orphan(f"shoal-{ours.namespace}-{ours.pid}-{ours.started}-00ff"), "as older versions named it"
    assert not is_orphan("shoal-my-own")
    assert start_ticks(os.getpid()) == ours.started


@pytest.mark.parametrize("sign", ["\f", "\r", "\x0b", "\x1c", "\x85", "\u2028"])
def test_a_mount_of_any_name_leaves_the_table_readable(sign: str) -> None:
    """Everybody's mounts are in it, and the kernel escapes only blanks, tabs, newlines, backslashes and `#`."""
    mountinfo = (
        f"31 23 0:28 / /mnt/odd{sign}name rw - tmpfs tmpfs rw\n41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    )

    assert find_hierarchies(mountinfo, f"0::/a{sign}b\n").v2 == Path(f"/sys/fs/cgroup/a{sign}b")


def test_hierarchies_are_found_from_what_the_kernel_says() -> None:
    mountinfo = (
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
        "30 23 0:27 / /home/a\u2028b\x0cc\x85d\re rw - overlay shoal rw,upperdir=/home/a\u2028b\x0cc\x85d\re/upper\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 /docker/abc /sys/fs/cg\\040roup/memory rw - cgroup cgroup rw,memory\n"
        "36 31 0:33 /elsewhere /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    )
    own = "8:pids:/../x\n4:memory:/docker/abc/in\n1:cpu,cpuacct:/a:b\n0::/user.slice\n"

    found = find_hierarchies(mountinfo, own)

    assert found.v1 == {
        "cpu": Path("/sys/fs/cgroup/cpu,cpuacct/a:b"),
        "cpuacct": Path("/sys/fs/cgroup/cpu,cpuacct/a:b"),
        "memory": Path("/sys/fs/cg roup/memory/in"),
        "pids": Path("/sys/fs/cgroup/pids"),
    }
    assert found.v2 == Path("/sys/fs/cgroup/unified/user.slice")
    assert find_hierarchies("", "").v2 is None


@pytest.mark.parametrize(
    ("dialect", "file", "frozen", "thawed"),
    [(DIALECT1, "freezer.state", "FROZEN", "THAWED"), (DIALECT2, "cgroup.freeze", "1", "0")],
)
def test_a_group_is_frozen_and_thawed_before_its_end(
    tmp_path: Path, dialect: Dialect, file: str, frozen: str, thawed: str
) -> None:
    for name in (file, "cgroup.procs"):
        (tmp_path / name).touch()
    group = KernelGroup("x", {"memory": tmp_path, "freezer": tmp_path}, dialect, CgroupFiles())
    seen = []
    for act in (group.thaw, group.freeze, group.thaw, group.freeze, group.kill, group.freeze):
        act()
        seen.append((tmp_path / file).read_text())

    assert seen == ["", frozen, thawed, frozen, thawed, thawed]
