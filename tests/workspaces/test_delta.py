"""A base on top of another: the same files as a whole checkout, at the cost of the difference."""

import os
import stat
from dataclasses import replace
from pathlib import Path

from shoal.git.repository import inspect
from shoal.model.policy import Layers
from shoal.store.paths import StatePaths
from shoal.workspaces.base_checkouts import base_ready, delta_ready
from shoal.workspaces.mount import mount_overlay, unmount
from tests.acting import ran, shown, step
from tests.conftest import git

CHANGES = """
echo new > new.txt; echo changed >> README.md; rm d0/f0.txt; rm -r gone; mkdir -p deep/er; echo x > deep/er/x
rm was_file; mkdir was_file; echo y > was_file/y; rm -r was_folder; echo z > was_folder; ln -s README.md link
chmod +x d0/f1.txt; printf 'a\\nb' > "$(printf 'odd\\nname')"
"""


def seen(tree: Path) -> dict[str, tuple[int, str]]:
    """Every file below *tree*: its kind, whether it can be run, and what it holds."""
    found = {}
    for path in sorted(tree.rglob("*")):
        mode = path.lstat().st_mode
        if not stat.S_ISDIR(mode) and path.name != ".git":
            text = str(path.readlink()) if path.is_symlink() else path.read_text()
            found[str(path.relative_to(tree))] = (stat.S_IFMT(mode) | (mode & 0o100), text)
    return found


def prepared(repo: Path) -> str:
    """Commit a second state beside the checked-out one, and give its commit."""
    for name in ("gone/a/b", "gone/c", "was_folder/inner", "was_file"):
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(f"{name}\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "more")
    assert os.spawnlp(os.P_WAIT, "sh", "sh", "-ec", f"cd '{repo}'\n{CHANGES}") == 0
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "second")
    second = git(repo, "rev-parse", "HEAD")
    git(repo, "reset", "-q", "--hard", "HEAD~1")
    return second


async def test_the_layers_show_what_a_whole_checkout_shows(repo: Path, tmp_path: Path) -> None:
    second = prepared(repo)
    repository = await inspect(repo, {})
    paths = StatePaths.of(tmp_path)
    paths.create()

    async with (
        base_ready(repository, git(repo, "rev-parse", "HEAD"), paths.bases) as first,
        delta_ready(repository, second, first, paths.bases) as delta,
        base_ready(repository, second, paths.bases) as whole,
    ):
        assert len(list(delta.tree.rglob("*"))) < len(list(whole.tree.rglob("*")))
        assert delta.files == whole.files
        if os.geteuid() == 0:
            target = tmp_path / "target"
            target.mkdir()
            mount_overlay(Layers(lower=delta.trees, upper=None, work=None, target=target))
            try:
                assert seen(target) == seen(whole.tree)
                assert not (target / "gone").exists()
            finally:
                unmount(target)


async def test_a_second_look_finds_the_layer_made(repo: Path, tmp_path: Path) -> None:
    second = prepared(repo)
    repository = await inspect(repo, {})
    paths = StatePaths.of(tmp_path)
    paths.create()

    async with base_ready(repository, git(repo, "rev-parse", "HEAD"), paths.bases) as first:
        async with delta_ready(repository, second, first, paths.bases) as delta:
            made = delta.tree.stat().st_ino
        async with delta_ready(repository, second, first, paths.bases) as again:
            assert again.tree.stat().st_ino == made


async def test_an_agent_on_such_a_base_sees_a_clean_checkout_and_its_work_is_kept(repo: Path) -> None:
    """For any user: an ordinary user's layers are mounted in the sandbox."""
    second = prepared(repo)
    script = "git status --porcelain; git diff --stat HEAD; ls; cat was_file/y; echo w > w; rm new.txt"
    report = await ran(repo, replace(step("work", script), base=second))

    result = report.steps[0].worker_results[0]
    assert result.output.split() == [
        "README.md",
        "d0",
        "deep",
        "link",
        "new.txt",
        "odd",
        "name",
        "was_file",
        "was_folder",
        "y",
    ]
    assert shown(repo, result, "w") == "w"
    assert git(repo, "diff", "--name-status", second, str(result.commit)).split() == ["D", "new.txt", "A", "w"]
