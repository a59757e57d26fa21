"""Packs of commits that travel between machines."""

import os
from pathlib import Path

from shoal.git.packs import write_pack
from shoal.git.repository import inspect
from tests.conftest import git


async def test_a_changed_file_brings_no_list_of_all_its_neighbours(repo: Path, tmp_path: Path) -> None:
    (repo / "flat").mkdir()
    for number in range(2000):
        (repo / "flat" / f"f{number}.txt").write_text(f"{number}")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "many")
    before = git(repo, "rev-parse", "HEAD")
    (repo / "flat" / "f7.txt").write_text("changed")
    git(repo, "commit", "-qam", "one")
    opened = await inspect(repo, os.environ)

    whole = await write_pack(opened, ("HEAD",), (), tmp_path / "whole")
    delta = await write_pack(opened, ("HEAD",), (before,), tmp_path / "delta")

    assert whole > 40_000
    assert delta < 2_000
