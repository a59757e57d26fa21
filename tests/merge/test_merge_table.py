"""The table of conflicts: sessions that end in each kind, reported with kind, files and partner."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.merge.merge import preview
from shoal.model.merge import ConflictKind
from tests.conftest import git
from tests.merge.merging import RUN, merged, open_merge_context, report, run_of, statuses, tree, worker

LINES = "".join(f"line {number}\n" for number in range(30))
Edit = Callable[[Path], object]


def rewritten(name: str, line: str) -> Edit:
    return lambda repo: (repo / name).write_text(LINES.replace("line 3\n", line))


def renamed(old: str, new: str) -> Edit:
    return lambda repo: (repo / old).rename(repo / new)


def removed(name: str) -> Edit:
    return lambda repo: (repo / name).unlink()


def binary(byte: int) -> Edit:
    return lambda repo: (repo / "image").write_bytes(bytes([byte]) + bytes(range(256)) * 4)


def added(name: str, content: str = "x\n", mode: int = 0o644) -> Edit:
    def edit(repo: Path) -> None:
        (repo / name).parent.mkdir(exist_ok=True)
        (repo / name).write_text(content)
        (repo / name).chmod(mode)

    return edit


def linked(target: str) -> Edit:
    def edit(repo: Path) -> None:
        (repo / "link").unlink()
        (repo / "link").symlink_to(target)

    return edit


def became_a_link(repo: Path) -> None:
    (repo / "text").unlink()
    (repo / "text").symlink_to("image")


def submodule(digit: str) -> Edit:
    return lambda repo: git(repo, "update-index", "--add", "--cacheinfo", f"160000,{digit * 40},sub")


def folder_split(*places: str) -> Edit:
    """Move the files of a folder to other places, one after the other in turn."""

    def edit(repo: Path) -> None:
        for number, file in enumerate(sorted((repo / "many").iterdir())):
            target = repo / places[number % len(places)]
            target.mkdir(exist_ok=True)
            file.rename(target / file.name)

    return edit


@dataclass(frozen=True)
class Case:
    """Two edits that cannot be had together, the kind of that, and some of the files that must be named."""

    one: Edit
    two: Edit
    kind: ConflictKind
    paths: frozenset[str]


def case(one: Edit, two: Edit, kind: str, *paths: str) -> Case:
    return Case(one, two, ConflictKind(kind), frozenset(paths))


TABLE = {
    "the same line": case(rewritten("text", "1\n"), rewritten("text", "2\n"), "content", "text"),
    "both add a file": case(added("new", "1\n"), added("new", "2\n"), "content", "new"),
    "binary": case(binary(1), binary(2), "binary", "image"),
    "renamed to two names": case(renamed("text", "a"), renamed("text", "b"), "rename/rename", "text", "a", "b"),
    "two renamed to one name": case(renamed("text", "c"), renamed("other", "c"), "content", "c"),
    "renamed and deleted": case(renamed("text", "a"), removed("text"), "rename/delete", "a"),
    "changed and deleted": case(rewritten("text", "1\n"), removed("text"), "modify/delete", "text"),
    "added with two modes": case(added("tool"), added("tool", mode=0o755), "mode", "tool"),
    "two targets of a link": case(linked("image"), linked("other"), "symlink", "link"),
    "a file became a link": case(became_a_link, rewritten("text", "1\n"), "symlink", "text"),
    "a file where a folder is": case(added("place"), added("place/in"), "directory/file", "place"),
    "two commits of a submodule": case(submodule("1"), submodule("2"), "submodule", "sub"),
    "a submodule and a file": case(submodule("1"), added("sub", "x\n"), "submodule", "sub"),
    "names apart by case": case(added("Notes"), added("notes", "y\n"), "case", "Notes", "notes"),
    "folders apart by case": case(added("Docs/a"), added("docs/b"), "case", "Docs", "docs"),
}


def started(repo: Path) -> str:
    for name in ("text", "other"):
        (repo / name).write_text(LINES if name == "text" else "".join(f"other {n}\n" for n in range(30)))
    (repo / "image").write_bytes(bytes(range(256)) * 4)
    (repo / "link").symlink_to("text")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "more")
    return git(repo, "rev-parse", "HEAD")


def committed(repo: Path, base: str, edit: Edit) -> str:
    git(repo, "checkout", "-q", "--force", "--detach", base)
    git(repo, "clean", "-fdq")
    edit(repo)
    if not git(repo, "diff", "--cached", "--name-only"):
        git(repo, "add", "-A")
    git(repo, "commit", "-qm", "side")
    commit = git(repo, "rev-parse", "HEAD")
    git(repo, "checkout", "-q", "--force", "main")
    git(repo, "clean", "-fdq")
    return commit


@pytest.mark.parametrize("name", TABLE)
async def test_each_conflict_is_told_as_what_it_is_with_its_files_and_partner(repo: Path, name: str) -> None:
    base, row = started(repo), TABLE[name]
    sides = [committed(repo, base, edit) for edit in (row.one, row.two, added("beside"))]
    run = report(repo, [worker(number, commit) for number, commit in enumerate(sides)])
    before = tree(repo, "main"), (repo / ".git/index").read_bytes()

    async with open_merge_context(repo, run) as context:
        seen = await preview(context)
    done = await merged(repo, run, "s0", "s1", "s2")

    assert statuses(done) == {"s0": "merged", "s1": "conflicts", "s2": "merged"}
    assert {one.kind for one in done["s1"].conflicts} == {row.kind}
    named = {path.partition("~")[0] for one in done["s1"].conflicts for path in one.paths}
    assert row.paths <= named
    if row.kind is not ConflictKind.CASE:  # of which git knows nothing
        assert [(one.one, one.other) for one in seen.clashes] == [("s0", "s1")]
        assert {name for one in done["s1"].conflicts for name in one.partners} == {"s0"}
    assert (tree(repo, "main"), (repo / ".git/index").read_bytes()) == before


@pytest.mark.deep
async def test_a_folder_that_went_to_several_places_is_told_as_a_rename(repo: Path) -> None:
    (repo / "many").mkdir()
    for number in range(6):
        (repo / "many" / f"f{number}").write_text(f"content of {number}\n" * 20)
    base = started(repo)
    sides = [committed(repo, base, edit) for edit in (folder_split("left", "right"), added("many/new"))]

    done = await merged(repo, report(repo, [worker(number, commit) for number, commit in enumerate(sides)]))

    assert sorted(statuses(done).values()) == ["conflicts", "merged"]
    (conflict,) = (conflict for one in done.results for conflict in one.conflicts)
    assert conflict.kind is ConflictKind.RENAME


NAMES = st.sampled_from([f"d0/f{number}.txt" for number in range(5)] + [f"n{number}/x" for number in range(4)])
EDITS = st.dictionaries(NAMES, st.one_of(st.none(), st.text("ab\n", min_size=1, max_size=8)), max_size=9)


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=EDITS, data=st.data())
def test_disjoint_edits_give_one_tree_in_any_order_by_any_strategy(
    repo: Path, edits: dict[str, str | None], data: st.DataObject
) -> None:
    """The files are dealt out to three sessions, which are merged twice."""
    known = set(git(repo, "ls-tree", "-r", "--name-only", "main").split())
    real = {name: text for name, text in edits.items() if text is not None or name in known}
    owner = {name: data.draw(st.integers(0, 2)) for name in real}
    dealt = [{name: text for name, text in real.items() if owner[name] == number} for number in range(3)]
    run = run_of(repo, *[one or {f"own{number}": "x\n"} for number, one in enumerate(dealt)])
    trees = set()
    for _ in range(2):
        order = data.draw(st.permutations(["s0", "s1", "s2"]))
        strategy = data.draw(st.sampled_from(["auto", "squash", "rebase", "octopus"]))
        git(repo, "update-ref", "-d", f"refs/heads/shoal/{RUN}")
        done = asyncio.run(merged(repo, run, *order, strategy=strategy))
        assert set(statuses(done).values()) == {"merged"}
        trees.add(tree(repo, f"shoal/{RUN}"))
    assert len(trees) == 1
