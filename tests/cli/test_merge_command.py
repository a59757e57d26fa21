"""`shoal merge`, as a user types it."""

import json
from pathlib import Path

from tests.cli.conftest import Shoal
from tests.conftest import git

AGENTS = """\
agents:
  one: {adapter: scripted, script: [{write: {path: same.txt, content: "one\\n"}}]}
  two: {adapter: scripted, script: [{write: {path: same.txt, content: "two\\n"}}]}
  new: {adapter: scripted, script: [{write: {path: "new\\u001b[31m.txt", content: "new\\n"}}]}
  ci: {adapter: scripted, script: [{write: {path: ".envrc", content: "rm -rf\\n"}}]}
steps:
  - {name: one, agent: one, prompt: go}
  - {name: two, agent: two, prompt: go}
  - {name: new, agent: new, prompt: go}
  - {name: ci, agent: ci, prompt: go}
"""


def test_a_run_is_previewed_merged_delivered_and_undone(repo: Path, shoal: Shoal) -> None:
    (repo / "p.yaml").write_text(AGENTS)
    git(repo, "add", "p.yaml")
    git(repo, "commit", "-qm", "plan")
    before = git(repo, "rev-parse", "main"), git(repo, "status", "--porcelain")
    run = json.loads(shoal("run", "p.yaml", "--json").out)["run"]

    seen = shoal("merge", "--preview")
    waiting = shoal("merge", "--into", "main")
    ready = shoal("merge")

    assert (seen.code, waiting.code, ready.code) == (0, 2, 4)
    assert "content: same.txt" in seen.out
    assert "add --yes or --strategy auto" in waiting.err
    assert "2 of 4 sessions merged" in ready.out
    assert "--allow-executable-config" in ready.out
    assert "\x1b" not in ready.out + seen.out
    assert (git(repo, "rev-parse", "main"), git(repo, "status", "--porcelain")) == before

    done = shoal("merge", run, "--into", "main", "--yes", "--json")
    document = json.loads(done.out)
    assert done.code == 4
    assert sorted(one["status"] for one in document["results"]) == ["conflicts", "held", "merged", "merged"]
    assert document["delivery"]["status"] == "delivered"
    (clash,) = [one for one in document["results"] if one["status"] == "conflicts"]
    assert clash["conflicts"][0]["paths"] == ["same.txt"]
    assert clash["conflicts"][0]["partners"][0].split("-")[-2] in ("one", "two")
    assert (repo / "same.txt").exists()

    undone = shoal("merge", "--undo", run, "new")
    assert (undone.code, git(repo, "status", "--porcelain")) == (0, "")
    assert not list(repo.glob("new*"))


def test_bad_words_change_nothing(ran: Shoal) -> None:
    for words in (["--preview", "--undo"], ["--undo", "--into", "main"], ["nope"], ["--strategy", "squish"]):
        said = ran("merge", *words)
        assert (said.code, said.err.count("\n")) == (2, 1), said
    assert ran("merge", "--into", "nowhere", "--yes").code == 2
