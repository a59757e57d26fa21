"""Every row of docs/repositories.md: worked on, or refused at once with a reason and nothing written."""

import re
from pathlib import Path

import pytest

from shoal.errors import BadInput
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from tests.acting import assert_nothing_left, fingerprint, paths_in, ran, shown, step, worked
from tests.conftest import git, make_repo

DOCS = Path(__file__).parents[2] / "docs" / "repositories.md"


async def worked_on(repo: Path, script: str = "echo w > w", home: Path | None = None) -> WorkerResult:
    before = fingerprint(home or repo)
    result = await worked(repo, script)
    assert result.status is Status.SUCCEEDED, result
    assert shown(repo, result, "w") == "w"
    assert fingerprint(home or repo) == before
    return result


async def refused(folder: Path, reason: str, **how: str) -> None:
    with pytest.raises(BadInput, match=reason) as raised:
        await worked(folder, "echo w > w", **how)
    assert raised.value.exit_code == 2
    assert not (folder / ".shoal").exists()


async def test_plain(repo: Path) -> None:
    result = await worked_on(repo)

    assert paths_in(repo, result) == {"README.md", "w", *(f"d0/f{n}.txt" for n in range(5))}
    assert_nothing_left(repo)


async def test_dirty_checkout(repo: Path) -> None:
    (repo / "README.md").write_text("changed\n")
    (repo / "untracked").write_text("new\n")
    before = fingerprint(repo)

    report = await ran(repo, step("work", "cat README.md; ls"))

    assert "2 uncommitted changes are not in the base: agents do not see them" in report.notes
    assert report.steps[0].worker_results[0].output.startswith("scratch\n")
    assert "untracked" not in report.steps[0].worker_results[0].output
    assert fingerprint(repo) == before


async def test_merge_in_progress(repo: Path) -> None:
    git(repo, "checkout", "-qb", "side")
    (repo / "README.md").write_text("side\n")
    git(repo, "commit", "-qam", "side")
    git(repo, "checkout", "-q", "main")
    git(repo, "merge", "-q", "--no-ff", "--no-commit", "side")

    await worked_on(repo)

    assert (repo / ".git/MERGE_HEAD").exists()


async def test_below_a_parent_repository(repo: Path) -> None:
    inner = make_repo(repo / "inner")

    result = await worked_on(inner)

    assert "agent/" in git(inner, "branch", "--list", str(result.branch))
    assert git(repo, "branch", "--list", "agent/*") == ""


async def test_linked_worktree(repo: Path, tmp_path: Path) -> None:
    git(repo, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    (tmp_path / "side/side.txt").write_text("side\n")
    git(tmp_path / "side", "add", "-A")
    git(tmp_path / "side", "commit", "-qm", "side")

    result = await worked_on(tmp_path / "side", home=repo)

    assert "side.txt" in paths_in(repo, result)
    assert git(tmp_path / "side", "status", "--porcelain") == ""
    assert not (tmp_path / "side/.shoal").exists()


async def test_sparse_checkout(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "wide", 450)
    git(repo, "sparse-checkout", "set", "d0")
    assert not (repo / "d1").exists()

    result = await worked_on(repo, "echo w > w; test -e d1/f300.txt")

    assert "d1/f300.txt" in paths_in(repo, result)
    assert not (repo / "d1").exists()


async def test_submodules(repo: Path, tmp_path: Path) -> None:
    other = make_repo(tmp_path / "other")
    git(repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    git(repo, "commit", "-qm", "submodule")

    result = await worked_on(repo, 'echo w > w; test -d sub && test -z "$(ls -A sub)"; git status --short')

    assert git(repo, "rev-parse", f"{result.branch}:sub") == git(other, "rev-parse", "HEAD")
    assert git(repo, "status", "--porcelain") == ""


async def test_inside_a_submodule(repo: Path, tmp_path: Path) -> None:
    """Its gitdir lies in that of the repository around it, and there its exclude file does too."""
    other = make_repo(tmp_path / "other")
    git(repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")

    result = await worked(repo / "sub", "echo w > w")

    assert shown(repo / "sub", result, "w") == "w"
    assert (repo / "sub/.shoal").is_dir()
    assert git(repo / "sub", "status", "--porcelain") == ""


async def test_lfs(repo: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 5\n"
    (repo / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    (repo / "big.bin").write_text(pointer)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "lfs")
    for key in ("smudge", "clean", "process"):
        git(repo, "config", f"filter.lfs.{key}", f"touch {canary}; cat")
    git(repo, "config", "filter.lfs.required", "true")

    result = await worked(repo, "echo w > w; cat big.bin; echo x >> README.md; git commit -qam mine")

    assert result.status is Status.SUCCEEDED
    assert result.output == pointer
    assert shown(repo, result, "big.bin") == pointer.strip()
    assert not canary.exists()


async def test_shallow_clone(repo: Path, tmp_path: Path) -> None:
    for number in range(3):
        git(repo, "commit", "-q", "--allow-empty", "-m", str(number))
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repo}", "shallow")

    await worked_on(tmp_path / "shallow", "echo w > w; git log --oneline; git add w; git commit -qm w; git fsck")


async def test_partial_clone(repo: Path, tmp_path: Path) -> None:
    git(repo, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--filter=blob:none", f"file://{repo}", "partial")
    await worked_on(tmp_path / "partial")

    git(tmp_path, "clone", "-q", "--filter=blob:none", "--no-checkout", f"file://{repo}", "hollow")
    await refused(tmp_path / "hollow", "fetch them")


async def test_sha256(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "long", 3, format="--object-format=sha256")

    result = await worked_on(repo, "echo w > w; git add w; git commit -qm w; git gc -q")

    assert result.commit is not None
    assert len(result.commit) == 64


async def test_autocrlf(repo: Path) -> None:
    git(repo, "config", "core.autocrlf", "true")

    result = await worked_on(repo, "printf 'w\\r\\n' > w; git status --short | grep -v w; od -c README.md | head -1")

    assert "\\r  \\n" in result.output
    assert result.files_changed == 1
    assert git(repo, "cat-file", "-s", f"{result.branch}:README.md") == "8"


async def test_borrowed_objects(repo: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--shared", str(repo), "one")
    git(tmp_path, "clone", "-q", "--shared", str(tmp_path / "one"), "two")

    await worked_on(tmp_path / "two", "echo w > w; git log --oneline; git show HEAD:README.md")


async def test_packed_refs(repo: Path) -> None:
    git(repo, "pack-refs", "--all")
    git(repo, "gc", "-q")

    await worked_on(repo)


async def test_detached_head(repo: Path) -> None:
    git(repo, "checkout", "-q", "--detach")

    await worked_on(repo)


@pytest.mark.parametrize("strategy", ["auto", "worktree"])
async def test_odd_path(tmp_path: Path, strategy: str) -> None:
    repo = make_repo(tmp_path / "a b,c:d'e\"f\\gü$(x)\u2028y\x85z")

    result = await worked(repo, "echo w > w; git status --short", strategy=strategy)

    assert result.status is Status.SUCCEEDED, result
    assert shown(repo, result, "w") == "w"
    assert_nothing_left(repo)


@pytest.mark.parametrize("sign", ["\n", "\r"])
async def test_line_break_in_the_path(tmp_path: Path, sign: str) -> None:
    await refused(make_repo(tmp_path / f"a{sign}b"), "line break")


async def test_empty_repository(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "empty")

    await refused(tmp_path / "empty", "commit something first")


async def test_bare_repository(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", "bare.git")

    await refused(tmp_path / "bare.git", "bare repository")


async def test_inside_a_gitdir(repo: Path) -> None:
    await refused(repo / ".git", "run Shoal in the checkout")


async def test_no_repository(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "a.txt").write_text("a\n")
    await refused(folder, "git init")

    result = await worked(folder, "echo b >> a.txt; echo w > w", strategy="directory")

    assert result.status is Status.SUCCEEDED
    assert (folder / "a.txt").read_text() == "a\n"
    patch = (folder / ".shoal/results" / f"{result.session}.patch").read_text()
    assert "+b\n" in patch
    assert result.artifacts == {"patch": str(folder / ".shoal/results" / f"{result.session}.patch")}


async def test_missing_base(repo: Path) -> None:
    await refused(repo, "is not a commit", base="nowhere")


async def test_foreign_state(repo: Path) -> None:
    (repo / ".shoal").mkdir()
    (repo / ".shoal/ledger.db").write_text("forged")
    git(repo, "add", "-f", ".shoal")
    git(repo, "commit", "-qm", "state of somebody else's")

    with pytest.raises(BadInput, match="shoal"):
        await worked(repo, "echo w > w")

    assert (repo / ".shoal/ledger.db").read_text() == "forged"


async def test_branch_in_the_way(repo: Path) -> None:
    git(repo, "branch", "agent")

    await refused(repo, "rename it")


def test_every_row_is_a_test() -> None:
    rows = re.findall(r"^\| ([a-z][^|]*?) \|", DOCS.read_text(), re.MULTILINE)[1:]
    named = {name.removeprefix("test_").replace("_", " ") for name in globals() if name.startswith("test_")}

    assert set(rows) <= named
    assert len(rows) == len(set(rows)) == len(named) - 1
