"""Each conflict is reported with its kind and files; disjoint edits give one tree in any order."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.errors import GitFailed
from shoal.git.commits import Commit
from shoal.git.conflicts import Clean, Conflicted, ConflictReader, records
from shoal.git.merge import try_pairs, workbench
from shoal.git.repository import inspect
from shoal.model.merge import ConflictKind
from tests.conftest import git

Edit = Callable[[Path], object]
LINES = "".join(f"line {number}\n" for number in range(30))


def base(repo: Path) -> None:
    (repo / "text").write_text(LINES)
    (repo / "image").write_bytes(bytes(range(256)) * 4)
    (repo / "link").symlink_to("text")
    (repo / "folder").mkdir()
    (repo / "folder/inner").write_text(LINES)


def link(target: str) -> Edit:
    def edit(repo: Path) -> None:
        (repo / "link").unlink()
        (repo / "link").symlink_to(target)

    return edit


def binary(byte: int) -> Edit:
    return lambda repo: (repo / "image").write_bytes(bytes([byte]) + bytes(range(256)) * 4)


def text(sign: str) -> Edit:
    return lambda repo: (repo / "text").write_text(LINES.replace("line 3\n", f"{sign}\n"))


def moved(name: str) -> Edit:
    return lambda repo: (repo / "text").rename(repo / name)


def program(mode: int) -> Edit:
    def edit(repo: Path) -> None:
        (repo / "tool").write_text("#!/bin/sh\n")
        (repo / "tool").chmod(mode)

    return edit


def submodule(digit: str) -> Edit:
    return lambda repo: git(repo, "update-index", "--add", "--cacheinfo", f"160000,{digit * 40},sub")


def folder_in_the_way(repo: Path) -> None:
    (repo / "place").mkdir()
    (repo / "place/inside").write_text("inside\n")


TABLE: dict[str, tuple[Edit, Edit, ConflictKind, set[str]]] = {
    "content": (text("one"), text("two"), ConflictKind.CONTENT, {"text"}),
    "binary": (binary(1), binary(2), ConflictKind.BINARY, {"image"}),
    "rename/rename": (moved("first"), moved("second"), ConflictKind.RENAME_RENAME, {"text", "first", "second"}),
    "rename/delete": (moved("first"), lambda repo: (repo / "text").unlink(), ConflictKind.RENAME_DELETE, {"first"}),
    "modify/delete": (text("one"), lambda repo: (repo / "text").unlink(), ConflictKind.MODIFY_DELETE, {"text"}),
    "mode": (program(0o644), program(0o755), ConflictKind.MODE, {"tool"}),
    "symlink": (link("image"), link("folder"), ConflictKind.SYMLINK, {"link"}),
    "directory/file": (
        folder_in_the_way,
        lambda repo: (repo / "place").write_text("a file\n"),
        ConflictKind.DIRECTORY_FILE,
        {"place"},
    ),
    "submodule": (submodule("1"), submodule("2"), ConflictKind.SUBMODULE, {"sub"}),
}


def committed(repo: Path, edit: Edit) -> str:
    git(repo, "checkout", "-q", "--force", "--detach", "main")
    git(repo, "clean", "-fdq")
    edit(repo)
    if not git(repo, "diff", "--cached", "--name-only"):
        git(repo, "add", "-A")
    git(repo, "commit", "-qm", "side")
    return git(repo, "rev-parse", "HEAD")


@pytest.mark.parametrize("name", TABLE)
async def test_a_conflict_is_told_as_what_it_is(repo: Path, name: str) -> None:
    base(repo)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "more")
    mine, yours, kind, paths = TABLE[name]
    sides = committed(repo, mine), committed(repo, yours)
    repository = await inspect(repo, {})

    for pair in (sides, sides[::-1]):
        (tried,) = await try_pairs(repository, [pair])

        assert isinstance(tried, Conflicted)
        assert {one.kind for one in tried.conflicts} == {kind}
        assert paths <= {path.partition("~")[0] for path in tried.paths}


async def test_pairs_leave_nothing_in_the_repository(repo: Path) -> None:
    base(repo)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "more")
    one, two = committed(repo, text("one")), committed(repo, binary(1))
    repository = await inspect(repo, {})
    before = git(repo, "count-objects", "-v")

    (tried,) = await try_pairs(repository, [(one, two)])

    assert isinstance(tried, Clean)
    assert git(repo, "count-objects", "-v") == before


async def test_names_of_any_bytes_are_carried(repo: Path) -> None:
    name = os.fsdecode(b"\xff weird\n\"name' \xc3\xa9")

    def edit(content: str) -> Edit:
        return lambda repo: (repo / name).write_text(content)

    one, two = committed(repo, edit("1\n")), committed(repo, edit("2\n"))
    repository = await inspect(repo, {})

    (tried,) = await try_pairs(repository, [(one, two)])

    assert isinstance(tried, Conflicted)
    assert tried.paths == (name,)


async def test_a_bench_answers_many_questions_and_knows_what_it_wrote_itself(repo: Path) -> None:
    sides = [committed(repo, lambda repo, n=n: (repo / f"new{n}").write_text("x\n")) for n in range(4)]  # type: ignore[misc]
    repository = await inspect(repo, {})
    tip = sides[0]

    async with workbench(repository) as bench:
        for side in sides[1:]:
            tried = await bench.try_merge(tip, side)
            assert isinstance(tried, Clean)
            tip = bench.commit(Commit(tree=tried.tree, parents=(tip, side), message="m\n"))
        hidden = bench.commit(Commit(tree=await bench.tree(tip), parents=(tip,), message="p\n"))
        await bench.publish(tip, sides)
        assert isinstance(await bench.try_merge(hidden, sides[0]), Clean)

    assert {f"new{n}" for n in range(4)} <= set(git(repo, "ls-tree", "--name-only", tip).split())
    assert git(repo, "fsck", "--strict", "--no-dangling") == ""
    assert git(repo, "cat-file", "--batch-check", "--batch-all-objects").count(hidden) == 0


async def test_a_git_that_says_nothing_before_its_end_is_asked_anew_each_time(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.git.merge.ANSWER_SECONDS", 0.0)
    start = git(repo, "rev-parse", "main")
    one, two = committed(repo, program(0o644)), committed(repo, program(0o755))

    async with workbench(await inspect(repo, {})) as bench:
        first, second = await bench.try_merge(one, start), await bench.try_merge(one, two)

    assert (type(first), type(second)) == (Clean, Conflicted)


async def test_a_commit_that_is_gone_is_told_and_not_waited_for(repo: Path) -> None:
    async with workbench(await inspect(repo, {})) as bench:
        with pytest.raises(GitFailed, match="not something we can merge"):
            await bench.try_merge("1" * 40, "2" * 40)


def test_a_record_is_read_whatever_pieces_it_comes_in() -> None:
    output = (
        b"1\0" + b"a" * 40 + b"\0\0\0" + b"0\0" + b"b" * 40 + b"\x00100644 c 2\tx\0\0001\0x\0CONFLICT (binary)\0m\n\0\0"
    )

    whole = records(output)

    assert [type(one) for one in whole] == [Clean, Conflicted]
    for cut in range(len(output)):
        reader = ConflictReader()
        reader.feed(output[:cut])
        reader.feed(output[cut:])
        assert reader.found == whole


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(4)), lines=st.permutations(range(0, 30, 5)), data=st.data())
def test_disjoint_edits_give_one_tree_in_any_order(
    tmp_path: Path, new_repo: Callable[..., Path], order: list[int], lines: list[int], data: st.DataObject
) -> None:
    shutil.rmtree(tmp_path / "r", ignore_errors=True)
    repo = new_repo("r")
    (repo / "text").write_text(LINES)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "text")

    def edit(number: int) -> Edit:
        kind = data.draw(st.sampled_from(["line", "new", "gone", "rename"]))

        def change(repo: Path) -> None:
            if kind == "line":
                (repo / "text").write_text(LINES.replace(f"line {lines[number]}\n", f"edit {number}\n"))
            elif kind == "new":
                (repo / f"new{number}").write_text(f"unlike the others: {number * 7919}\n")
            elif kind == "gone":
                (repo / f"d0/f{number}.txt").unlink()
            else:
                (repo / f"d0/f{number}.txt").rename(repo / f"renamed{number}")

        return change

    sides = [committed(repo, edit(number)) for number in range(4)]

    async def tree(commits: list[str]) -> str:
        async with workbench(await inspect(repo, {})) as bench:
            tip, made = commits[0], ""
            for commit in commits[1:]:
                tried = await bench.try_merge(tip, commit)
                assert isinstance(tried, Clean), tried
                made = tried.tree
                tip = bench.commit(Commit(tree=made, parents=(tip, commit), message="m\n"))
            return made

    assert asyncio.run(tree(sides)) == asyncio.run(tree([sides[number] for number in order]))
