"""Hogs: agents that use all the memory, processes, disk, log and time they can, and odd ways to end."""

import asyncio
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.model.events import AgentEnded, Output
from shoal.model.limits import ResourceLimits
from shoal.model.plan import Step
from shoal.model.results import RunReport, WorkerResult
from shoal.model.status import Status
from shoal.store.paths import StatePaths
from shoal.store.reader import read_session
from tests.acting import ran, shown, step, worked
from tests.conftest import make_repo
from tests.escapes.scene import GOOD, Scene
from tests.sessions.test_limit_watch import is_kernels, nobody_left

DOCS = Path(__file__).parents[2] / "docs"
PYTHON = "exec python3 -I -S -c '{}'"
HOLD = "import time; time.sleep(1)"
BUFFERS = """
import os, socket, time
held = []
def fill(send):
    try:
        for _ in range(64): send(bytes(2**16))
    except BlockingIOError: pass
try:
    for _ in range(%d):
        {pair}
        held.append(pair)
except OSError as error: print(error)
time.sleep(1)"""
PIPE = "pair = os.pipe(); os.set_blocking(pair[1], False); fill(lambda piece: os.write(pair[1], piece))"
SOCKET = "pair = socket.socketpair(); pair[0].setblocking(False); fill(pair[0].send)"
MEMORY = {
    "malloc": PYTHON.format(f"x = [bytearray(2**20) for _ in range(300)]; {HOLD}"),
    "tmp": "head -c 300M /dev/zero > /tmp/x; sleep 1",
    "shm": "head -c 300M /dev/zero > /dev/shm/x; sleep 1",
    "memfd": PYTHON.format(
        f'import os; f = os.memfd_create("x")\nfor _ in range(300): os.write(f, bytes(2**20))\n{HOLD}'
    ),
    "tail": "head -c 20G /dev/zero | tail; sleep 1",
    "pipes": PYTHON.format((BUFFERS % 3000).format(pair=PIPE)),
    "sockets": PYTHON.format((BUFFERS % 3000).format(pair=SOCKET)),
}
SEEN_BY_POLLING = {"malloc", "tail"}
DISK = {
    "files": "for n in 1 2 3 4; do head -c 10M /dev/zero > fill.$n; done; sleep 60",
    "home": "head -c 40M /dev/zero > $HOME/fill; sleep 60",
    "inodes": PYTHON.format(
        "import os, time\nfor n in range(16000): os.close(os.open(str(n), os.O_CREAT))\ntime.sleep(60)"
    ),
    "unlinked": "exec 3> fill; rm fill; head -c 40M /dev/zero >&3; sleep 60",
    "objects": "for n in 1 2 3 4; do head -c 10M /dev/urandom | git hash-object -w --stdin; done; sleep 60",
}
LEAN = ResourceLimits(memory_mb=64, disk_mb=6, time_seconds=40, pids=64, cpu_percent=None)


async def hogged(
    scene: Scene, hogs: dict[str, str], limits: ResourceLimits
) -> tuple[RunReport, dict[str, WorkerResult]]:
    """Run every hog at once, beside a good agent, and make the checks."""
    steps = [step(name, f"echo w > w; {script}", limits=limits) for name, script in hogs.items()]

    report = await ran(scene.repo, *steps, step("good", GOOD), sandbox=scene.wall)

    scene.assert_held(report)
    results = {one.step: one.worker_results[0] for one in report.steps}
    assert results.pop("good").status is Status.SUCCEEDED
    assert await nobody_left(scene.repo)
    return report, results


async def test_memory_is_memory_wherever_it_is_put(scene: Scene) -> None:
    """B8.60. Polling sees mapped memory; docs/limits.md says what it does not see."""
    # a memfd is an open file without a name; all pipes of one user have 64 MB together, and others hold some of it
    report, results = await hogged(scene, MEMORY, replace(LEAN, disk_mb=5120, memory_mb=32))

    # without private ones from a sandbox, they may not be writable
    shut = {} if scene.is_walled else {"tmp": None, "shm": None}
    seen = set(MEMORY) if is_kernels(report) else SEEN_BY_POLLING
    for name, result in results.items():
        assert shown(scene.repo, result, "w") == "w"
        limit = shut.get(name, "memory") if name in seen else None
        is_late = result.status is Status.TIMED_OUT
        assert (result.limit == limit) or (name not in seen and is_late), (name, result)
    if not is_kernels(report):
        assert "tmpfs, shm, memfd" in (DOCS / "limits.md").read_text()
    if not scene.is_walled:
        assert any("/tmp and /dev/shm" in note for note in report.notes)


async def test_disk_is_disk_however_it_is_used(scene: Scene) -> None:
    """B8.61: large files, the private home, many inodes, a file without a name, objects of the private gitdir."""
    _, results = await hogged(scene, DISK, replace(LEAN, memory_mb=512))

    for name, result in results.items():
        assert (result.status, result.limit) == (Status.OVER_LIMIT, "disk"), (name, result)
        assert shown(scene.repo, result, "w") == "w"


async def test_a_sparse_file_costs_no_disk_and_is_named_not_hashed(scene: Scene) -> None:
    """B8.61, B1.13: 30 GB of holes."""
    attack = await scene.attacked("echo w > w; truncate -s 30G holes", limits=LEAN)

    assert attack.result.limit is None
    assert attack.result.unkept == ("holes",)
    assert shown(scene.repo, attack.result, "w") == "w"
    await scene.looked_after(attack)


BOMBS = {
    "bash": "exec bash -c ':(){ :|:& };: ; sleep 60'",
    "python": PYTHON.format("import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(0.01)"),
}
CROWD = {"crowd": "for n in $(seq 100); do sleep 60 & done; wait"}


async def test_a_bomb_is_named_and_leaves_the_others_alone(scene: Scene) -> None:
    """B8.59. Where processes are only counted by polling, a crowd of them stands for the bomb."""
    is_root = os.geteuid() == 0  # who has a control group

    report, results = await hogged(scene, BOMBS if is_root else CROWD, replace(LEAN, memory_mb=512))

    assert is_kernels(report) == is_root
    for name, result in results.items():
        assert (result.status, result.limit) == (Status.OVER_LIMIT, "pids"), (name, result)
        assert shown(scene.repo, result, "w") == "w"


@pytest.mark.deep
@pytest.mark.parametrize("stream", ["", ">&2"])
async def test_past_its_cap_the_log_keeps_the_start_and_says_how_much_is_missing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    """B8.62, with a small cap; every byte was kept or is counted."""
    monkeypatch.setattr("shoal.sessions.output_log.LOG_BYTES", 2**20)

    attack = await scene.attacked(f"yes 0123456 | head -c 4000000 {stream}")

    outputs = said(scene, attack.result)
    assert sum(len(one.text) + 1 for one in outputs[:-1]) + outputs[-1].dropped == 4_000_000
    assert (outputs[-1].text, outputs[0].text[:16]) == ("", "0123456\n0123456\n")
    assert database_bytes(scene, attack.result) < 2 * 2**20
    told = await asyncio.to_thread(scene.shoal, "logs", "attack")
    assert f"{outputs[-1].dropped} bytes of output not kept" in told.out.replace(",", "")
    assert stream or attack.result.output.endswith("0123456\n0123456\n")


@pytest.mark.deep
async def test_ten_million_short_lines_are_bounded(scene: Scene) -> None:
    """B8.63."""
    attack = await scene.attacked("yes '{}' | head -n 10000000; echo end")

    outputs = said(scene, attack.result)
    assert sum(len(one.text) + bool(one.text) + one.dropped for one in outputs) <= 30_000_004
    assert len(outputs) < 5_000
    assert database_bytes(scene, attack.result) < 80 * 2**20
    assert attack.result.output.endswith("{}\nend\n")


async def test_many_small_writes_are_few_events(scene: Scene) -> None:
    """B8.63: an event takes some hundred bytes, so each two bytes of output may not become one."""
    attack = await scene.attacked("n=0; while [ $n -lt 20000 ]; do echo $n; n=$((n+1)); done")

    outputs = said(scene, attack.result)
    assert "\n".join(one.text for one in outputs).split() == [str(n) for n in range(20_000)]
    assert len(outputs) < 1000


async def test_bytes_that_are_no_text_are_shown_as_such(scene: Scene) -> None:
    """B8.64: no UTF-8, NUL, a lone CR, a code point in two pieces, no line end at the end."""
    script = (
        r"printf '\377\376a\000b\rc\n\342\202'; sleep 0.2; printf '\254\r\n\342\202'; printf '\360\237' >&2; exit 3"
    )

    attack = await scene.attacked(script)

    assert attack.result.output == "\ufffd\ufffda\ufffdb\rc\n€\n\ufffd\n"
    assert attack.result.error == "it exited with 3: \ufffd"
    assert [one.text for one in said(scene, attack.result) if one.stream == "stderr"] == ["\ufffd"]
    await scene.looked_after(attack)


@pytest.mark.deep
async def test_who_says_little_or_nothing_ends_by_its_time(scene: Scene) -> None:
    """B8.65."""
    quiet = {
        "silent": "sleep 600",
        "dribble": "while :; do printf .; sleep 0.3; done",
        "errors": "while :; do echo e >&2; sleep 0.3; done",
        "deaf": "trap '' TERM INT HUP; while :; do sleep 0.2; done",
    }

    _, results = await hogged(scene, quiet, replace(LEAN, time_seconds=1.5))

    for name, result in results.items():
        assert (result.status, result.limit) == (Status.TIMED_OUT, "time"), (name, result)
        assert result.error == "it was still running after 1.5 s"
        assert shown(scene.repo, result, "w") == "w"
    assert set(results["dribble"].output.strip()) == {"."}


@pytest.mark.deep
async def test_every_way_to_end_is_recorded_as_it_was(scene: Scene) -> None:
    """B8.66. In the full sandbox a signal is reported as 128 plus its number, as by any shell."""
    codes = {f"code-{code}": code for code in (0, 1, 2, 126, 137, 143, 255)}
    signals = {f"signal-{number}": number for number in (1, 2, 3, 6, 9, 11, 13, 15, 24)}
    steps: list[Step] = [step(name, f"echo w > w; exit {code}") for name, code in codes.items()]
    steps += [step(name, f"echo w > w; ulimit -c 0; kill -{number} $$") for name, number in signals.items()]

    report = await ran(scene.repo, *steps, sandbox=scene.wall)

    ends = {one.step: ended(scene, one.worker_results[0]) for one in report.steps}
    assert {name: ends[name] for name in codes} == {name: (code, None) for name, code in codes.items()}
    for name, number in signals.items():
        assert ends[name] == ((128 + number, None) if scene.is_walled else (None, number)), signal.Signals(number)
    results = {one.step: one.worker_results[0] for one in report.steps}
    assert [name for name, result in results.items() if result.status is Status.SUCCEEDED] == ["code-0"]
    assert {result.status for name, result in results.items() if name != "code-0"} == {Status.FAILED}


def said(scene: Scene, result: WorkerResult) -> list[Output]:
    events = [one.event for one in read_session(StatePaths.of(scene.repo), result.session)]
    return [event for event in events if isinstance(event, Output)]


def ended(scene: Scene, result: WorkerResult) -> tuple[int | None, int | None]:
    events = [one.event for one in read_session(StatePaths.of(scene.repo), result.session)]
    (end,) = (event for event in events if isinstance(event, AgentEnded))
    assert end.exit_code == result.exit_code
    return end.exit_code, end.signal


def database_bytes(scene: Scene, result: WorkerResult) -> int:
    return StatePaths.of(scene.repo).session_db(result.session).stat().st_size


if os.geteuid() == 0:  # only root can make the disk that is to be filled

    async def test_the_last_of_a_disk_is_left_free(tmp_path: Path) -> None:
        """B8.61: the reserve applies whatever the agent's own limit; on a small disk it is a twentieth."""
        disk = tmp_path / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", disk], check=True)
        try:
            repo = make_repo(disk / "repo")
            fill = "head -c 350M /dev/zero > fill; n=0; while :; do head -c 1M /dev/zero > fill.$((n=n+1)); sleep 0.05; done"
            result = await worked(repo, f"echo precious > w; {fill}")

            assert (result.status, result.limit) == (Status.OVER_LIMIT, "disk")
            assert shown(repo, result, "w") == "precious"
        finally:
            subprocess.run(["umount", "-l", disk], check=True)
            shutil.rmtree(disk, ignore_errors=True)
