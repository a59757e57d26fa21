"""A node that lies: its session may fail, and the repository here stays right."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.executors.carriers import registry
from shoal.executors.wire.link import NodeLink
from shoal.executors.wire.messages import SessionDone, SessionHappened, StartSession
from shoal.model.artifact import Artifact
from shoal.model.events import Imported, Output, RunEnded, SessionEnded
from shoal.model.nodes import parse_nodes
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.store.codec import encode, encode_value
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events, read_session
from tests.conftest import git
from tests.executors.test_executors import opened, worker
from tests.nodes import hostile

CLAIM = WorkerResult(index=7, session="other-000000", status=Status.SUCCEEDED, branch="main", commit="0" * 40)


@pytest.fixture(autouse=True)
def _lying_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "MODULES", {**registry.MODULES, "pipe": "tests.nodes.hostile"})
    yield
    hostile.ATTACKS.clear()


def fingerprint(repo: Path) -> tuple[str, str, str]:
    refs = [line for line in git(repo, "for-each-ref").splitlines() if "refs/heads/agent/" not in line]
    return "\n".join(refs), git(repo, "status", "--porcelain"), (repo / ".git" / "config").read_text()


async def attacked(repo: Path, attack: hostile.Attack, *artifacts: Artifact) -> WorkerResult:
    hostile.ATTACKS.append(attack)
    before = fingerprint(repo)
    async with asyncio.timeout(90), opened(repo, parse_nodes("pipe:1")) as run:
        from dataclasses import replace

        spec = replace(worker("true"), artifacts=artifacts)
        result = await run.executor.run(run.context, spec, lambda _: None)
        assert (result.session, result.index, result.node) == (spec.session, 0, "pipe")
    assert fingerprint(repo) == before
    git(repo, "fsck", "--full", "--strict")
    return result


async def finish(
    link: NodeLink,
    start: StartSession,
    *,
    claim: object = CLAIM,
    pack: bytes = b"",
    tip: str = "",
    artifacts: dict[str, bytes] | None = None,
    pack_bytes: int | None = None,
    fence: str = "",
) -> None:
    """Send the end of a session."""
    body = claim if isinstance(claim, bytes) else json.dumps(encode_value(claim)).encode()
    files = artifacts or {}
    channel = link.open_channel()
    done = SessionDone(
        session=start.session,
        fence=fence or start.fence,
        channel=channel.number,
        result_bytes=len(body),
        pack_bytes=len(pack) if pack_bytes is None else pack_bytes,
        tip=tip,
        artifacts={label: len(content) for label, content in files.items()},
    )
    link.post(done)
    for content in (body, pack, *files.values()):
        await channel.write(content)
    await channel.finish()


def make_pack(repo: Path, *revs: str) -> bytes:
    import subprocess

    asked = "".join(f"{rev}\n" for rev in revs).encode()
    argv = ["git", "-C", str(repo), "pack-objects", "--revs", "--stdout", "-q"]
    return subprocess.run(argv, input=asked, capture_output=True, check=True).stdout


async def test_its_names_of_sessions_branches_and_commits_are_not_believed(repo: Path) -> None:
    result = await attacked(repo, finish)

    assert (result.status, result.branch, result.commit) == (Status.NO_CHANGES, None, None)


async def test_a_pack_that_is_none_is_refused(repo: Path) -> None:
    result = await attacked(repo, lambda link, start: finish(link, start, pack=b"PACK" + b"\xff" * 5000, tip="a" * 40))

    assert result.status is Status.FAILED
    assert "the work was refused" in str(result.error)


async def test_work_that_does_not_build_on_the_base_is_refused(repo: Path) -> None:
    tree = git(repo, "rev-parse", "HEAD^{tree}")
    foreign = git(repo, "commit-tree", tree, "-m", "foreign")
    pack = make_pack(repo, foreign)

    result = await attacked(repo, lambda link, start: finish(link, start, pack=pack, tip=foreign))

    assert result.status is Status.FAILED
    assert "does not descend from the base" in str(result.error)
    assert result.branch is None


@pytest.mark.parametrize("tip", ["main", "--all", "../../x", "a" * 39])
async def test_a_tip_that_is_no_object_name_is_refused(repo: Path, tip: str) -> None:
    result = await attacked(repo, lambda link, start: finish(link, start, pack=b"PACK" + b"0" * 40, tip=tip))

    assert result.status is Status.FAILED
    assert "not an object name" in str(result.error)


async def test_artifacts_are_only_taken_under_our_names(repo: Path) -> None:
    files = {"../../../evil": b"x", "/etc/evil": b"x", "plan": b"{}", "database": b"x"}
    result = await attacked(
        repo, lambda link, start: finish(link, start, artifacts=files), Artifact(name="plan", path="plan.json")
    )

    assert list(result.artifacts) == ["plan"]
    assert Path(result.artifacts["plan"]).is_relative_to(StatePaths.of(repo).results)
    assert not list(repo.parent.rglob("evil"))


@pytest.mark.parametrize("claim", [b"", b"[]", b"{", b'{"index": "x"}', b"[" * 50_000], ids=range(5))
async def test_a_result_that_cannot_be_read_fails_the_session(repo: Path, claim: bytes) -> None:
    result = await attacked(repo, lambda link, start: finish(link, start, claim=claim))

    assert result.status is Status.FAILED
    assert "cannot be read" in str(result.error)


@pytest.mark.parametrize("size", [-1, 2**60, 100])
async def test_wrong_sizes_fail_the_session(repo: Path, size: int) -> None:
    result = await attacked(repo, lambda link, start: finish(link, start, pack_bytes=size))

    assert result.status is Status.FAILED
    assert "larger than it may be" in str(result.error) or "less than it said" in str(result.error)


async def test_what_comes_with_another_fence_is_not_heard(repo: Path) -> None:
    """A node that was cut off, and speaks again, changes nothing."""

    async def replay(link: NodeLink, start: StartSession) -> None:
        await finish(link, start, claim=b"garbage", fence="older-1")
        say(link, start, Output(run="x", session="y", stream="stdout", text="late"), fence="older-1")
        await finish(link, start)

    result = await attacked(repo, replay)

    assert result.status is Status.NO_CHANGES
    assert not [event for event in recorded_of(repo, result.session) if isinstance(event, Output)]


def say(link: NodeLink, start: StartSession, event: object, *, fence: str = "") -> None:
    kind = type(event).__name__
    body = encode(event)  # type: ignore[arg-type]
    link.post(SessionHappened(session=start.session, fence=fence or start.fence, kind=kind, body=body))


def recorded_of(repo: Path, session: str) -> list[object]:
    return [recorded.event for recorded in read_session(StatePaths.of(repo), session)]


async def test_events_that_are_none_of_a_session_are_not_recorded(repo: Path) -> None:
    async def forge(link: NodeLink, start: StartSession) -> None:
        say(link, start, RunEnded(run="r", status=Status.SUCCEEDED, duration_seconds=1))
        say(link, start, Imported(run="r", session="other", branch="main", commit="0" * 40, files_changed=1))
        say(link, start, SessionEnded(run="r", step="s", session="other", result=CLAIM))
        say(link, start, Output(run="r", session="other", stream="stdout", text="of this session"))
        await finish(link, start)

    result = await attacked(repo, forge)

    (output,) = [event for event in recorded_of(repo, result.session) if isinstance(event, Output)]
    assert (output.session, output.text) == (result.session, "of this session")
    kinds = [type(recorded.event) for recorded in read_events(StatePaths.of(repo))]
    assert RunEnded not in kinds
    assert Imported not in kinds
    assert any("3 of its events were not recorded" in note for note in result.notes)


async def test_a_flood_of_events_is_bounded(repo: Path) -> None:
    text = "x" * 500_000

    async def flood(link: NodeLink, start: StartSession) -> None:
        body = encode(Output(run="r", session="s", stream="stdout", text=text))
        for _ in range(300):
            await link.send(SessionHappened(session=start.session, fence=start.fence, kind="Output", body=body))
        await finish(link, start)

    result = await attacked(repo, flood)

    assert sum(path.stat().st_size for path in StatePaths.of(repo).sessions.iterdir()) < 110 * 2**20
    assert any("were not recorded" in note for note in result.notes)
