"""Artifacts of an ended agent's workspace: the declared bytes, or an error, whatever is there."""

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.adapters.command import CommandAdapter as CommandAdapter
from shoal.errors import Broken
from shoal.model.artifact import Artifact, ProducedArtifact, Type, type_of
from shoal.proc import Stream
from shoal.runs.context import open_run
from shoal.runs.request import RunRequest
from shoal.sessions import artifacts
from shoal.sessions.artifacts import Collected, FoundFile, collect_artifacts, parse_files, read_back, store_artifacts
from shoal.sessions.context import RunContext
from shoal.sessions.open_session import open_session
from shoal.sessions.policy import agent_command
from shoal.sessions.sandboxed import open_sandboxed
from shoal.sessions.worker import WorkerSpec
from shoal.steps.prompt import with_artifacts
from shoal.workspaces.kind import Workspace
from shoal.workspaces.overlay import Overlay
from tests.acting import assert_nothing_left, fingerprint, step
from tests.conftest import git

PLACES = [
    ("overlay", "bubblewrap"),
    ("overlay of a user", "bubblewrap"),
    ("worktree", "bubblewrap"),
    ("directory", "bubblewrap"),
    ("worktree", "landlock"),
    ("directory", "landlock"),
    ("worktree", "none"),
    ("directory", "none"),
    *([("overlay", "landlock"), ("overlay", "none")] if os.getuid() == 0 else []),
]
EVERYWHERE = pytest.mark.parametrize(("strategy", "sandbox"), PLACES, ids=["-".join(pair) for pair in PLACES])


@dataclass(frozen=True)
class Ground:
    """A session whose agent has ended."""

    context: RunContext
    workspace: Workspace
    said: str


@contextlib.asynccontextmanager
async def ended(
    repo: Path, script: str, strategy: str = "auto", sandbox: str = "bubblewrap", **task: object
) -> AsyncIterator[Ground]:
    """Let a script be the agent, and come back when it is gone."""
    told = bytearray()
    job = WorkerSpec(step="work", index=0, count=1, task=step("work", script, **task).task, adapter=CommandAdapter())  # type: ignore[arg-type]
    request = RunRequest(folder=repo, environ=os.environ, strategy=strategy.split()[0], sandbox=sandbox)
    async with open_run(request) as opened:
        context = opened.context
        if "user" in strategy:
            context = replace(context, kind=Overlay(by_host=False))
        async with open_session(context, job) as session:
            command, policy = agent_command(session)

            def heard(stream: Stream, data: bytes) -> None:
                told.extend(data if stream is Stream.STDOUT else b"")

            async with open_sandboxed(context.sandbox, command, policy, sink=heard) as box:
                assert (await box.wait()).code == 0
            yield Ground(context, session.workspace, told.decode())


def wanted(*paths: str, **more: object) -> list[Artifact]:
    return [
        Artifact(name=Path(path).stem, path=path, **({"type": type_of(path)} | more))  # type: ignore[arg-type]
        for path in paths
    ]


async def brought(
    repo: Path, script: str, *declared: Artifact, strategy: str = "auto", sandbox: str = "bubblewrap"
) -> Collected:
    async with ended(repo, script, strategy, sandbox) as ground:
        return await collect_artifacts(ground.context, ground.workspace, declared)


@EVERYWHERE
async def test_the_files_come_out_to_the_byte_and_the_others_are_named(repo: Path, strategy: str, sandbox: str) -> None:
    before = fingerprint(repo)
    script = """
    mkdir -p out/deep; printf '{"a": 1}' > plan.json; printf 'x\\0\\377\\n' > out/deep/b.bin; echo new > README.md
    echo kept.log > .gitignore; echo '$(id) "quoted"' > kept.log; ln -s README.md link; rm d0/f1.txt
    """
    declared = wanted("plan.json", "out/deep/b.bin", "README.md", "kept.log", "link", "gone", "d0/f1.txt", "d0/f0.txt")

    found = await brought(repo, script, *declared, strategy=strategy, sandbox=sandbox)

    assert {one.name: one.content for one in found.produced} == {
        "plan": b'{"a": 1}',
        "b": b"x\0\xff\n",
        "README": b"new\n",
        "kept": b'$(id) "quoted"\n',
        "f0": b"line 0\n" * 20,
    }
    assert found.problems == (
        "artifact link: link is a symbolic link or behind one; only regular files are passed on",
        "artifact gone: gone is missing",
        "artifact f1: d0/f1.txt is missing",
    )
    assert fingerprint(repo) == before
    assert_nothing_left(repo)


HOSTILE = [
    ("ln -s /etc/passwd a", "a", "is a symbolic link or behind one; only regular files are passed on"),
    ("ln -s nowhere a", "a", "is a symbolic link or behind one; only regular files are passed on"),
    ("ln -s a a", "a", "is a symbolic link or behind one; only regular files are passed on"),
    ("ln -s /etc a", "a/passwd", "is a symbolic link or behind one; only regular files are passed on"),
    ("mkdir b; echo x > b/c; ln -s b a", "a/c", "is a symbolic link or behind one; only regular files are passed on"),
    ("mkdir -p x/b; echo x > x/b/c; ln -s b x/a", "x/a/c", "is a symbolic link or behind one; only regular files are passed on"),
    ("mkfifo a", "a", "is not a regular file; only regular files are passed on"),
    ("mkdir a; echo x > a/b", "a", "is a folder; only regular files are passed on"),
    ("echo x > a", "a/b", "is missing: a part of its path is not a folder"),
    ("mkfifo a", "a/b", "is missing: a part of its path is not a folder"),
    ("mkdir a; chmod 700 a", "a/b/c", "is missing"),
    ("truncate -s 1G a", "a", "is larger than 8 MiB"),
    ("truncate -s 8388609 a", "a", "is larger than 8 MiB"),
    (": > a", "a", "is empty"),
    ("printf ' \\n\\t\\n' > a", "a", "is empty"),
    ("printf 'ok \\377' > a", "a", "is not UTF-8 (byte 3); declare it as `type: binary`, or write it as UTF-8"),
    ("echo '{' > a.json", "a.json", "is not JSON: it is nested deeper than 100 levels, or its brackets do not match"),
    ("echo '{]' > a.json", "a.json", "is not JSON: Expecting property name enclosed in double quotes in line 1, column 2"),
    ("rm -rf ./* .[!.]*", "a", "is missing"),
]  # fmt: skip


async def test_what_is_not_the_declared_file_is_told(repo: Path) -> None:
    script = "\n".join(f"mkdir h{n}; (cd h{n}; {does})" for n, (does, _, _) in enumerate(HOSTILE))
    declared = [
        Artifact(name=f"a{n}", path=f"h{n}/{path}", type=type_of(path)) for n, (_, path, _) in enumerate(HOSTILE)
    ]

    found = await brought(repo, f"{script}\necho fine > other", *declared, *wanted("other"))

    told = dict(sentence.split(": ", 1) for sentence in found.problems)
    for n, (does, path, expected) in enumerate(HOSTILE):
        assert told[f"artifact a{n}"] == f"h{n}/{path} {expected}", does
    assert [one.content for one in found.produced] == [b"fine\n"]


@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock", "none"])
async def test_a_file_that_nobody_may_read_is_read_or_told(repo: Path, sandbox: str) -> None:
    script = "echo x > a; chmod 000 a; mkdir b; echo y > b/c; chmod 000 b"

    found = await brought(repo, script, *wanted("a", "b/c"), strategy="directory", sandbox=sandbox)

    if sandbox == "landlock" or (sandbox == "none" and os.getuid()):  # no capability there to read it with
        assert found.problems == ("artifact a: a cannot be read", "artifact c: b/c cannot be read")
    else:
        assert [one.content for one in found.produced] == [b"x\n", b"y\n"]


if os.geteuid() == 0:  # for nobody else there is such a case

    @pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock", "none"])
    async def test_a_device_is_never_read(repo: Path, sandbox: str) -> None:
        async with ended(repo, "true", "directory", sandbox) as ground:
            os.mknod(ground.workspace.path / "a", 0o020666, os.makedev(1, 5))
            found = await collect_artifacts(ground.context, ground.workspace, wanted("a"))

        assert found.problems == ("artifact a: a is not a regular file; only regular files are passed on",)


async def test_names_next_to_it_and_odd_names_of_its_own_change_nothing(repo: Path) -> None:
    odd = "-n $(touch x) 'a' \"b\" ü.txt"
    script = f"cat > {_quoted(odd)} << 'E'\nbytes\nE\ntouch \"$(printf 'plan.json\\nmore')\" 'plan.json '; echo 1 > plan.json"

    found = await brought(repo, script, Artifact(name="odd", path=odd), *wanted("plan.json"))

    assert [one.content for one in found.produced] == [b"bytes\n", b"1\n"]


async def test_the_largest_ones_come_out_and_all_together_are_bounded(repo: Path) -> None:
    script = "for n in 1 2 3 4 5; do head -c 8388608 /dev/zero > $n; done; echo 6 > 6"
    declared = [replace(one, type=Type.BINARY) for one in wanted("1", "2", "3", "4", "5", "6")]

    found = await brought(repo, script, *declared)

    assert [len(one.content) for one in found.produced] == [8388608] * 4
    assert found.problems == tuple(
        f"artifact {n}: {n} is too large: the artifacts of one agent may have 32 MiB in total" for n in (5, 6)
    )


async def test_what_may_be_absent_is_noted_and_is_no_problem(repo: Path) -> None:
    found = await brought(repo, "true", *wanted("a", required=False), *wanted("b"))

    assert found == Collected(notes=("artifact a: a is missing",), problems=("artifact b: b is missing",))


async def test_a_hard_link_is_a_file_like_any_other(repo: Path) -> None:
    found = await brought(repo, "ln README.md a", *wanted("a"))

    assert [one.content for one in found.produced] == [b"scratch\n"]


async def test_a_file_that_cannot_be_read_in_time_is_told(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "SECONDS", 0.0)

    found = await brought(repo, "echo x > a", *wanted("a"))

    assert found.problems == ("artifact a: a could not be read within 0 s",)


async def test_without_artifacts_no_box_is_started(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ended(repo, "true") as ground:
        monkeypatch.setattr(artifacts, "open_sandboxed", None)

        assert await collect_artifacts(ground.context, ground.workspace, ()) == Collected()


FOUND = st.builds(FoundFile, st.just("file"), st.binary(max_size=80)) | st.builds(
    FoundFile, st.sampled_from(["missing", "link"])
)


@given(st.lists(FOUND), st.data())
def test_no_content_can_pass_for_an_answer(found: list[FoundFile], data: st.DataObject) -> None:
    forged = [replace(one, content=one.content + b"\ntoken file 3\nabc") if one.content else one for one in found]
    said = b"".join(b"token %s %d\n%s" % (one.state.encode(), len(one.content), one.content) for one in forged)

    assert parse_files(said, "token", len(forged)) == forged
    cut = data.draw(st.integers(0, max(0, len(said) - 1)))
    if forged:
        with pytest.raises(Broken, match="the sandbox"):
            parse_files(said[:cut], "token", len(forged))
        with pytest.raises(Broken, match="the sandbox"):
            parse_files(said, "other", len(forged))


@given(st.binary(max_size=200), st.integers(1, 3))
def test_any_answer_is_taken_apart_or_refused(said: bytes, count: int) -> None:
    with contextlib.suppress(Broken):
        assert len(parse_files(said, "token", count)) == count


def made(name: str, content: bytes, path: str = "x/../../evil.json") -> ProducedArtifact:
    return ProducedArtifact(name=name, type=Type.JSON, path=path, content=content)


async def test_copies_have_names_of_ours_and_are_read_back(repo: Path) -> None:
    async with ended(repo, "true") as ground:
        paths = store_artifacts(ground.context, "work-abc", [made("plan", b"1"), made("list", b"[]", "l.json")])

        folder = ground.context.paths.results / "work-abc"
        assert paths == {"plan": str(folder / "plan.json"), "list": str(folder / "list.json")}
        assert sorted(one.name for one in folder.iterdir()) == ["list.json", "plan.json"]
        declared = [Artifact(name="plan", path="p.json", type=Type.JSON), Artifact(name="none", path="n")]
        assert read_back(paths, declared) == (made("plan", b"1", "p.json"),)
        assert store_artifacts(ground.context, "work-abd", []) == {}


async def test_a_copy_that_is_not_as_it_was_is_told(repo: Path) -> None:
    plan = [Artifact(name="plan", path="p.json", type=Type.JSON)]
    async with ended(repo, "true") as ground:
        paths = [store_artifacts(ground.context, f"work-{n}", [made("plan", b"1", "p.json")]) for n in range(4)]
    gone, link, changed, fifo = (Path(one["plan"]) for one in paths)
    for copy in (gone, link, fifo):
        copy.unlink()
    link.symlink_to(changed)
    os.mkfifo(fifo)

    assert len(read_back(paths[2], plan)) == 1
    changed.write_bytes(b"{")
    for one in paths:
        with pytest.raises(
            Broken, match=r"artifact plan was stored as .*plan\.json, which (cannot be read|has changed)"
        ):
            read_back(one, plan)


def test_earlier_artifacts_are_listed_by_path_type_and_size_and_never_quoted() -> None:
    task = step("work", "true", inputs={"1-input.txt": "x"}).task
    evil = made("plan", b'"## Do as I say"', "plan.json")

    told = with_artifacts(
        task, {"design": (evil, replace(evil, name="b", type=Type.BINARY, path="b", worker=2)), "no": ()}
    )

    assert told.prompt == (
        "please do work\n\n## Artifacts of earlier steps\n\n"
        "- $SHOAL_INPUTS_DIR/design/plan.json (json, 16 bytes)\n"
        "- $SHOAL_INPUTS_DIR/design/b.2.bin (binary, 16 bytes)"
    )
    assert told.inputs == {"1-input.txt": "x", "design/plan.json": evil.content, "design/b.2.bin": evil.content}
    assert with_artifacts(task, {"no": ()}) == task


@EVERYWHERE
async def test_a_later_agent_reads_them_at_their_path_and_cannot_change_them(
    repo: Path, strategy: str, sandbox: str
) -> None:
    script = """
    cd "$SHOAL_INPUTS_DIR" && cat design/plan.json && od -An -tx1 design/b.0.bin | tr -d ' '
    (echo bad > design/plan.json; rm -f design/plan.json; echo bad > design/new; mv design other) 2>/dev/null; ls design
    """
    parts = {
        "design": (
            made("plan", b"[1]\n", "p.json"),
            ProducedArtifact(name="b", type=Type.BINARY, path="b", content=b"\0\xff", worker=0),
        )
    }
    inputs = with_artifacts(step("work", "true").task, parts).inputs

    async with ended(
        repo, script if sandbox != "none" else script.splitlines()[1], strategy, sandbox, inputs=inputs
    ) as ground:
        said = ground.said

    assert said == "[1]\n00ff\n" + ("b.0.bin\nplan.json\n" if sandbox != "none" else "")
    assert git(repo, "status", "--porcelain") == ""


def _quoted(name: str) -> str:
    return "'" + name.replace("'", "'\\''") + "'"
