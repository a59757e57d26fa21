"""A run that brings its work together by itself: verified as it lands, and delivered only where that was asked."""

from pathlib import Path

from tests.cli.conftest import shoal_in
from tests.cli.flows import ran, written
from tests.conftest import git

MERGE = "merge: {strategy: auto, verify: 'test ! -e a.txt || test ! -e b.txt'}"


def merged(report: dict[str, object]) -> dict[str, str]:
    merge = report["merge"]
    assert isinstance(merge, dict)
    return {one["session"].rpartition("-")[0]: one["status"] for one in merge["results"]}


def test_what_fails_only_together_is_put_aside_and_the_rest_is_merged(repo: Path) -> None:
    before = (git(repo, "rev-parse", "HEAD"), git(repo, "status", "--porcelain"))
    steps = "steps:\n" + "".join(f'  - {{name: {name}, command: "echo x > {name}.txt"}}\n' for name in "abc")

    done = ran(repo, steps, runtime=f"sandbox: none, max_concurrent_workers: 1, {MERGE}")

    assert done.said.code == 4, "one of them is left for a person"
    found = merged(done.report)
    assert sorted(found.values()) == ["held", "merged", "merged"]
    assert found["c"] == "merged"
    held = next(one for one in done.report["merge"]["results"] if one["status"] == "held")
    assert "did not pass: it exited with 1" in held["message"]
    assert git(repo, "rev-parse", f"shoal/{done.report['run']}") == done.report["merge"]["commit"]
    assert (git(repo, "rev-parse", "HEAD"), git(repo, "status", "--porcelain")) == (before[0], before[1] or "?? p.yaml")


def test_work_is_delivered_into_a_branch_that_is_checked_out_and_clean(repo: Path) -> None:
    (repo / ".git/info/exclude").write_text("*.yaml\n")
    branch = git(repo, "symbolic-ref", "--short", "HEAD")

    done = ran(
        repo,
        'steps: [{name: a, command: "echo x > a.txt"}]',
        runtime=f"sandbox: none, merge: {{strategy: auto, into: {branch}}}",
    )

    assert (done.said.code, merged(done.report)) == (0, {"a": "merged"})
    assert (repo / "a.txt").read_text() == "x\n"
    assert git(repo, "status", "--porcelain") == ""


def test_nothing_is_merged_where_nobody_asked(repo: Path) -> None:
    done = ran(repo, 'steps: [{name: a, command: "echo x > a.txt"}]', runtime="sandbox: none")

    assert done.report["merge"] is None
    assert git(repo, "for-each-ref", "refs/heads/shoal") == ""


def test_review_prepares_and_waits_for_a_person(repo: Path) -> None:
    (repo / ".git/info/exclude").write_text("*.yaml\n")
    before = git(repo, "rev-parse", "main")

    done = ran(
        repo,
        'steps: [{name: a, command: "echo x > a.txt"}]',
        runtime="sandbox: none, merge: {strategy: review, into: main}",
    )

    delivery = done.report["merge"]["delivery"]
    assert (done.said.code, merged(done.report)) == (4, {"a": "merged"})
    assert (delivery["status"], delivery["old"], delivery["new"]) == ("waiting", before, done.report["merge"]["commit"])
    assert (git(repo, "rev-parse", "main"), (repo / "a.txt").exists()) == (before, False)

    approved = shoal_in(repo)(*delivery["command"].split()[1:])
    assert approved.code == 0, approved.err
    assert git(repo, "rev-parse", "main") == delivery["new"]
    assert (repo / "a.txt").read_text() == "x\n"


def test_review_is_the_default_and_the_plan_says_that_it_waits(repo: Path) -> None:
    file = written(repo, 'steps: [{name: a, command: "echo x > a.txt"}]', runtime="merge: {into: main}")

    planned = shoal_in(repo)("run", file, "--dry-run")

    assert "onto shoal/<run> (review), into main once you approve" in planned.out
