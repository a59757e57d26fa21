"""What a hostile agent or an unlucky user could once do to a merge; each was found by trying."""

import tempfile
import time
from pathlib import Path

import pytest

from shoal.errors import BadInput, Broken
from shoal.git.conflicts import Conflicted, ConflictReader
from shoal.merge.merge import preview
from shoal.merge.undo import undo
from shoal.model.merge import DeliveryStatus, MergeReport
from shoal.model.results import RunReport
from tests.conftest import git
from tests.merge.merging import RUN, merged, open_merge_context, report, run_of, side, statuses, worker

BRANCH = f"shoal/{RUN}"


def status_of(done: MergeReport) -> DeliveryStatus:
    assert done.delivery is not None
    return done.delivery.status


def standing_run(repo: Path) -> RunReport:
    """A run in which `s1` builds on `s0`, which is held."""
    flagged = side(repo, {".envrc": "evil\n"})
    return report(
        repo, [worker(0, flagged, executable=[".envrc"]), worker(1, side(repo, {"b": "1\n"}, flagged)), worker(2, None)]
    )


@pytest.mark.parametrize("named", [(), ("s1",)])
async def test_what_is_held_does_not_come_in_with_work_that_stands_on_it(repo: Path, named: tuple[str, ...]) -> None:
    run = standing_run(repo)

    done = await merged(repo, run, *named, into="main")

    assert statuses(done)["s1"] == "held"
    assert "builds on s0" in done["s1"].message
    assert "--allow-executable-config" in done["s1"].message
    assert not (repo / ".envrc").exists()


async def test_what_stands_on_it_is_merged_once_it_is_allowed(repo: Path) -> None:
    run = standing_run(repo)

    first = await merged(repo, run, "s0", allow=True)
    then = await merged(repo, run)
    whole = await merged(repo, run, allow=True)

    assert statuses(first) == {"s0": "merged"}
    assert [one.session for one in then.results] == ["s0", "s1", "s2"], "each is told once"
    assert statuses(then)["s0"] == "merged"
    assert statuses(then)["s1"] == statuses(whole)["s1"] == "merged"


@pytest.mark.parametrize(
    ("ignored", "files"),
    [
        (".env", {".env": "theirs\n"}),
        ("build/", {"build/local": "theirs\n"}),
        ("build", {"build": "theirs\n"}),
        ("notes", {"notes/x": "theirs\n"}),
    ],
)
async def test_an_ignored_file_of_the_users_is_never_overwritten(
    repo: Path, ignored: str, files: dict[str, str]
) -> None:
    """Git takes what is ignored for nobody's: it overwrites files, and removes whole folders for one."""
    (repo / ".git/info/exclude").write_text(f".shoal\n{ignored}\n")
    mine = [repo / name for name in (".env", "build/local", "notes")]
    (repo / "build").mkdir()
    for file in mine:
        file.write_text("mine\n")
    run = run_of(repo, files)
    before = git(repo, "rev-parse", "main")

    done = await merged(repo, run, into="main")

    assert status_of(done) is DeliveryStatus.LEFT
    assert "git does not track" in (done.delivery.message if done.delivery else "")
    assert [file.read_text() for file in mine] == ["mine\n"] * 3
    assert git(repo, "rev-parse", "main") == before


async def test_a_file_may_become_a_folder_and_a_folder_a_file(repo: Path) -> None:
    first = run_of(repo, {"README.md": None, "README.md/x": "1\n", "d0/f0.txt": None, "d0/f1.txt": None})

    done = await merged(repo, first, into="main")

    assert status_of(done) is DeliveryStatus.DELIVERED
    assert (repo / "README.md/x").read_text() == "1\n"


async def test_another_name_of_a_branch_is_refused_and_the_checkout_stays_with_its_branch(repo: Path) -> None:
    """Moved by its other name, the branch would leave the checkout behind: all the work would look deleted there."""
    git(repo, "symbolic-ref", "refs/heads/master", "refs/heads/main")
    run = run_of(repo, {"a": "0\n"})

    with pytest.raises(BadInput, match="another name of 'main'"):
        await merged(repo, run, into="master")

    assert git(repo, "status", "--porcelain") == ""


async def test_a_checkout_by_another_name_of_the_branch_moves_along(repo: Path) -> None:
    git(repo, "symbolic-ref", "refs/heads/master", "refs/heads/main")
    git(repo, "symbolic-ref", "refs/heads/trunk", "refs/heads/master")
    git(repo, "symbolic-ref", "HEAD", "refs/heads/trunk")

    done = await merged(repo, run_of(repo, {"a": "0\n"}), into="main")

    assert status_of(done) is DeliveryStatus.DELIVERED
    assert ((repo / "a").read_text(), git(repo, "status", "--porcelain")) == ("0\n", "")


async def test_a_worktree_whose_pointer_is_relative_is_found(repo: Path, tmp_path: Path) -> None:
    """As newer gits write it."""
    tree = tmp_path / "linked"
    git(repo, "worktree", "add", "-q", "-b", "theirs", str(tree))
    pointer = repo / ".git/worktrees/linked/gitdir"
    pointer.write_text(f"{Path('../../../..') / tree.relative_to(repo.parent)}/.git\n")

    done = await merged(repo, run_of(repo, {"a": "0\n"}), into="theirs")

    assert status_of(done) is DeliveryStatus.DELIVERED
    assert ((tree / "a").read_text(), git(tree, "status", "--porcelain")) == ("0\n", "")


async def test_no_branch_at_all_is_refused_before_anything_is_made(repo: Path) -> None:
    with pytest.raises(BadInput, match="there is no branch ''"):
        await merged(repo, run_of(repo, {"a": "0\n"}), into="")

    assert git(repo, "branch", "--list", BRANCH) == ""


@pytest.mark.deep
async def test_a_lock_that_somebody_left_is_named_and_nothing_is_said_to_have_moved(repo: Path) -> None:
    (repo / ".git/refs/heads/main.lock").touch()

    with pytest.raises(Broken, match=r"git cannot move main: cannot lock ref.*main\.lock"):
        await merged(repo, run_of(repo, {"a": "0\n"}), into="main")

    assert git(repo, "status", "--porcelain") == ""


async def test_a_branch_where_the_integration_has_to_go_is_named(repo: Path) -> None:
    git(repo, "branch", f"{BRANCH}/mine")

    with pytest.raises(Broken, match=f"{BRANCH}/mine' exists"):
        await merged(repo, run_of(repo, {"a": "0\n"}))


async def test_work_can_be_taken_out_when_the_branch_that_had_it_is_gone(repo: Path) -> None:
    run = run_of(repo, {"a": "0\n"}, {"b": "1\n"})
    git(repo, "branch", "feature")
    await merged(repo, run, into="feature")
    git(repo, "branch", "-qD", "feature")

    async with open_merge_context(repo, run) as context:
        done = await undo(context, ["s1"])

    assert (statuses(done), done.delivery) == ({"s0": "merged"}, None)
    assert git(repo, "ls-tree", "--name-only", BRANCH, "a", "b") == "a"


async def test_the_repository_may_be_on_another_file_system_than_temporary_files(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git cannot rename a pack from one to the other: no merge would ever have been published."""
    elsewhere = Path("/dev/shm")
    assert elsewhere.stat().st_dev != repo.stat().st_dev, "else this shows nothing"
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))

    done = await merged(repo, run_of(repo, {"a": "0\n"}), into="main", strategy="squash")

    assert status_of(done) is DeliveryStatus.DELIVERED
    assert (repo / "a").read_text() == "0\n"


def test_ten_thousand_conflicts_are_read_in_no_time() -> None:
    """They took half a minute, and as long for each look at them: each was sought among all."""
    names = [f"f{number}" for number in range(10_000)]
    entries = [f"100644 {stage * 40} {stage}\t{name}" for name in names for stage in "123"]
    said = [word for name in names for word in ("1", name, "CONFLICT (contents)", f"in {name}")]
    output = "\0".join(("0", "t" * 40, *entries, "", *said, "", "")).encode()

    began = time.process_time()
    reader = ConflictReader()
    for at in range(0, len(output), 1000):  # as a pipe brings it: in pieces, of which none may be read twice
        reader.feed(output[at : at + 1000])

    (found,) = reader.found
    assert isinstance(found, Conflicted)
    assert len(found.paths) == 10_000
    assert time.process_time() - began < 5


def cleared(repo: Path, *commits: str) -> None:
    """Delete the branches of *commits*, and let git clear their work away."""
    for commit in commits:
        git(repo, "branch", "-qD", f"agent/t/{commit[:8]}")
    git(repo, "reflog", "expire", "--expire=now", "--all")
    git(repo, "gc", "-q", "--prune=now")


async def test_work_whose_branch_was_deleted_costs_itself_and_nobody_else(repo: Path) -> None:
    lost, kept = side(repo, {"a": "0\n"}), side(repo, {"b": "1\n"})
    run = report(repo, [worker(0, lost), worker(1, kept)])
    cleared(repo, lost)

    async with open_merge_context(repo, run) as context:
        seen = await preview(context)
    done = await merged(repo, run)

    assert seen.sessions == ("s1",)
    assert statuses(done) == {"s1": "merged", "s0": "held"}
    assert "its branch was deleted" in done["s0"].message


async def test_squashed_work_stays_when_its_own_branch_is_deleted(repo: Path) -> None:
    """Nothing but the branch that it was squashed into has it then: that is gone on with, and never built anew."""
    lost, kept = side(repo, {"a": "0\n"}), side(repo, {"b": "1\n"})
    await merged(repo, report(repo, [worker(0, lost)]), strategy="squash")
    cleared(repo, lost)
    run = report(repo, [worker(0, lost), worker(1, kept)])

    done = await merged(repo, run, strategy="squash")
    with pytest.raises(BadInput, match="would have to be rebuilt"):
        await merged(repo, run, strategy="auto")

    assert [(one.session, one.status.value) for one in done.results] == [("s0", "merged"), ("s1", "merged")]
    assert git(repo, "ls-tree", "--name-only", BRANCH, "a", "b") == "a\nb"
