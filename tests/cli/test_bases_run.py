"""What a stage starts from in unusual cases: items without changes, groups, loops, selections."""

import json
from pathlib import Path

import pytest

from tests.cli.flows import Ran, ran
from tests.conftest import make_repo

CHAIN = [{"id": "a"}, {"id": "b", "after": ["a"]}, {"id": "c", "after": ["b"]}]
BASES = """
pipelines:
  - name: main
    steps:
      - {name: plan, agent: plan, prompt: go, output_artifacts: [items.json]}
      - name: chain
        needs: plan
        agent: do
        prompt: '[ {{ item.id }} = a ] && echo a > a; [ {{ item.id }} = c ] && ls > seen; true'
        strategy: {items_source: plan.items, dependency_key: after}
      - {name: torn, pipeline: cells}
      - {name: after-torn, needs: torn, agent: do, prompt: 'ls > seen'}
      - {name: beside-torn, needs: torn, base: run, agent: do, prompt: 'ls > seen'}
      - name: torn-loop
        agent: do
        prompt: 'echo {{ matrix.n }} > same'
        strategy: {matrix: {n: [1, 2]}}
        loop: {max: 3, until: "loop.round == 2"}
      - {name: best, agent: do, prompt: 'echo $SHOAL_WORKER_INDEX > who; seq $SHOAL_WORKER_INDEX > lines', concurrency: 2, select: {by: diff_size}}
      - {name: after-best, needs: best, base: needs, agent: do, prompt: 'cat who > seen'}
  - name: cells
    steps:
      - {name: first, agent: do, prompt: 'echo first > first'}
      - {name: cell, needs: first, agent: do, prompt: 'echo {{ matrix.n }} > same', strategy: {matrix: {n: [1, 2]}}}
"""


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run of stages that build on others in all kinds of ways."""
    repo = make_repo(tmp_path_factory.mktemp("bases") / "repo")
    return ran(repo, BASES, "main", plan=f"echo '{json.dumps(CHAIN)}' > items.json")


def test_an_item_builds_on_what_is_below_one_that_changed_nothing(bases: Ran) -> None:
    assert bases.workers("chain") == ["succeeded", "no_changes", "succeeded"]
    assert "a" in bases.shown("chain", "seen", 2).split()


def test_work_that_does_not_go_together_inside_of_a_pipeline_is_told_to_who_would_build_on_it(bases: Ran) -> None:
    assert (bases.statuses["torn"], bases.statuses["torn_cell"]) == ("succeeded", "succeeded")
    assert bases.statuses["after-torn"] == "failed"
    assert "conflicts in same" in bases["after-torn"]["error"]
    assert bases.statuses["beside-torn"] == "succeeded", "it does not build on it"


def test_a_loop_ends_where_its_next_round_cannot_build_on_the_one_before(bases: Ran) -> None:
    assert (bases.statuses["torn-loop"], bases["torn-loop"]["rounds"]) == ("failed", 1)
    assert "conflicts in same" in bases["torn-loop"]["error"]


def test_the_chosen_work_of_several_is_a_tree_to_build_on(bases: Ran) -> None:
    assert bases.shown("after-best", "seen") == str(bases["best"]["selected"])


def test_of_two_files_with_one_name_a_pipeline_hands_on_that_of_the_later_step(repo: Path, tmp_path: Path) -> None:
    """The order in which the steps happen to end does not matter: here the first one ends last."""
    (tmp_path / "there").mkdir()
    left = "output_artifacts: [{name: note, path: note.txt}]"
    wait = f"while [ ! -e {tmp_path}/there/over ]; do sleep 0.01; done; echo first > note.txt"
    done = ran(
        repo,
        f"""
        pipelines:
          - name: main
            steps:
              - {{name: all, pipeline: inner}}
              - {{name: read, needs: all, base: run, agent: do, prompt: 'cp "$SHOAL_INPUTS_DIR/all/note.txt" seen'}}
          - name: inner
            steps:
              - {{name: first, agent: do, prompt: '{wait}', {left}}}
              - {{name: second, agent: do, prompt: 'echo second > note.txt', {left}, base: run}}
              - {{name: third, needs: second, agent: do, prompt: 'rm note.txt; touch {tmp_path}/there/over'}}
        """,
        "main",
    )

    assert done.shown("read", "seen") == "second"
