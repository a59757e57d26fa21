"""Keys that interact in a run: artifacts of cells, conditions and conflicts, rounds that fail or are stopped."""

from pathlib import Path

import pytest

from tests.cli.flows import CHEAP, Ran, ran
from tests.conftest import git, make_repo

MEETING = """
steps:
  - name: own
    command: 'printf "{\\"t\\": \\"%s\\"}" {{ matrix.t }} > r-{{ matrix.t }}.json'
    strategy: {matrix: {t: [a, b]}}
    output_artifacts: [{name: r, path: "r-{{ matrix.t }}.json"}]
  - {name: own-after, needs: [own], command: 'echo r-*; cat $SHOAL_INPUTS_DIR/own/r.json'}
  - name: shared
    command: 'echo {{ matrix.t }} > r.txt'
    strategy: {matrix: {t: [a, b]}}
    output_artifacts: [r.txt]
  - {name: shared-after, needs: [shared], command: 'true'}
  - {name: left, command: 'echo a > same'}
  - {name: right, command: 'echo b > same'}
  - {name: never, needs: [left, right], if: 'false', command: 'true'}
  - {name: behind, needs: [never], command: 'true'}
  - {name: aside, needs: [never], base: run, command: 'true'}
  - {name: ours, needs: [left, right], on_conflict: ours, command: 'cat same'}
  - {name: theirs, needs: [left, right], on_conflict: theirs, command: 'cat same'}
  - {name: turned, needs: [right, left], on_conflict: ours, command: 'cat same'}
  - {name: report, needs: [left, right], on_conflict: report, command: 'cat same'}
  - {name: never-ours, needs: [left, right], on_conflict: ours, if: 'false', command: 'true'}
  - {name: behind-ours, needs: [never-ours], command: 'cat same'}
  - {name: gone, needs: [removes, changes], on_conflict: theirs, command: 'true'}
  - {name: removes, command: 'rm d0/f0.txt'}
  - {name: changes, command: 'echo more >> d0/f0.txt'}
  - name: tries
    optional: true
    command: 'echo x >> n; echo {{ loop.previous.status | default("first") }}; exit 1'
    loop: {until: 'false', max: 2}
  - {name: large, command: 'head -c 300000 /dev/zero | tr "\\0" y > l.txt', output_artifacts: [l.txt]}
  - {name: large-after, needs: [large], command: 'printf %s {{ artifacts.large.l }} | wc -c'}
"""


@pytest.fixture(scope="module")
def meeting(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run of them all."""
    return ran(make_repo(tmp_path_factory.mktemp("meeting") / "repo"), MEETING)


def test_a_cell_names_its_artifact_after_itself(meeting: Ran) -> None:
    assert meeting.statuses["own"] == "succeeded"
    assert meeting.worker("own-after")["output"] == 'r-a.json r-b.json\n[{"t": "a"},\n{"t": "b"}]\n'


def test_cells_that_leave_one_path_are_told_what_to_do(meeting: Ran) -> None:
    assert meeting.statuses["shared-after"] == "failed"
    assert "each worker leaves its own r.txt: put the cell into its path" in meeting["shared-after"]["error"]


def test_a_step_that_is_passed_over_does_not_fail_for_its_needs(meeting: Ran) -> None:
    assert (meeting.statuses["never"], meeting.statuses["aside"]) == ("skipped", "succeeded")
    assert meeting.statuses["behind"] == "failed"
    assert "never: the work of its needs (left, right) conflicts in same" in meeting["behind"]["error"]


@pytest.mark.parametrize(
    ("step", "needs", "rule", "content"),
    [("ours", "left, right", "ours", "a"), ("theirs", "left, right", "theirs", "b"), ("turned", "right, left", "ours", "b")],
)  # fmt: skip
def test_a_rule_takes_the_lines_of_one_need(meeting: Ran, step: str, needs: str, rule: str, content: str) -> None:
    assert meeting.worker(step)["output"] == f"{content}\n"
    assert meeting[step]["notes"] == [f"its needs ({needs}) conflict in same; resolved by `on_conflict: {rule}`"]
    assert meeting["large"]["notes"] == []


def test_the_rule_that_reports_fails_the_step(meeting: Ran) -> None:
    assert meeting.statuses["report"] == "failed"
    assert (
        "conflicts in same; let one of them need the other, or give it `on_conflict: ours`"
        in meeting["report"]["error"]
    )


def test_a_step_that_is_passed_over_hands_on_what_its_rule_resolved(meeting: Ran) -> None:
    assert meeting.statuses["never-ours"] == "skipped"
    assert meeting.worker("behind-ours")["output"] == "a\n"


def test_a_rule_cannot_decide_about_a_file_that_a_need_deleted(meeting: Ran) -> None:
    assert meeting.statuses["gone"] == "failed"
    assert "conflicts in d0/f0.txt, where `on_conflict: theirs` cannot decide" in meeting["gone"]["error"]


def test_a_round_that_fails_leaves_nothing_to_build_on(meeting: Ran) -> None:
    assert meeting["tries"]["rounds"] == 2
    assert meeting.worker("tries")["output"] == "failed\n"
    assert meeting.shown("tries", "n").split() == ["x"]


def test_a_large_value_arrives_whole(meeting: Ran) -> None:
    assert meeting.worker("large-after")["output"].strip() == "300000"


LANDING = """
steps:
  - {name: a, command: 'echo a > same'}
  - {name: b, command: 'echo b > same'}
  - {name: c, needs: [a, b], on_conflict: theirs, command: 'cat same > seen'}
  - {name: x, command: 'mkdir .vscode; echo x > .vscode/tasks.json'}
  - {name: y, command: 'mkdir .vscode; echo y > .vscode/tasks.json'}
  - {name: z, needs: [x, y], on_conflict: ours, command: 'touch z'}
"""


def test_what_a_rule_resolved_stays_held_with_the_needs(repo: Path) -> None:
    run = ran(repo, LANDING, runtime=f"{CHEAP}, merge: {{strategy: auto, into: main}}")

    landed = {one["session"].split("-")[0]: one["status"] for one in run.report["merge"]["results"]}
    assert landed == {"a": "merged", "b": "merged", "c": "merged", "x": "held", "y": "held", "z": "held"}
    assert git(repo, "show", "main:seen") == "b"
    assert git(repo, "ls-tree", "-r", "--name-only", "main", "--", ".vscode", "z") == ""
