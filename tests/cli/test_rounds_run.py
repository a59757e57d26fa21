"""The rounds of a loop afterwards: how they are reported, and what of them is merged."""

import json

import pytest

from tests.cli.conftest import shoal_in
from tests.cli.flows import Ran, ran
from tests.conftest import git, make_repo

SETTLED = "loop: {max: 4, until: 'this.files_changed == 0'}"
ROUNDS = """
pipelines:
  - name: main
    steps:
      - {name: one, agent: do, prompt: '[ {{ loop.round }} -lt 3 ] && echo {{ loop.round }} >> one; true', SETTLED}
      - name: best
        agent: do
        prompt: '[ {{ loop.round }} = 1 ] && seq 0 $SHOAL_WORKER_INDEX > best; echo $SHOAL_WORKER_INDEX > lost-$SHOAL_WORKER_INDEX; [ {{ loop.round }} = 2 ] && git reset -q --hard && git clean -qfd; true'
        concurrency: 2
        select: {by: diff_size}
        loop: {max: 2, until: "loop.round == 2"}
      - {name: cells, agent: do, prompt: '[ {{ loop.round }} = 1 ] && echo x > cell-{{ matrix.n }}; true', strategy: {matrix: {n: [1, 2]}}, loop: {max: 3, until: "loop.round == 2"}}
      - {name: group, pipeline: inner, loop: {max: 3, until: "loop.round == 2"}}
  - name: inner
    steps:
      - {name: list, agent: do, prompt: 'printf %s "$LIST" > items.json', env: {LIST: "{{ '[1, 2, 3]' if loop.round == 1 else '[9]' }}"}, output_artifacts: [items.json]}
      - {name: item, needs: list, agent: do, prompt: 'echo {{ item }} > item-{{ item }}', strategy: {items_source: list.items}}
      - {name: first, if: loop.round == 1, agent: do, prompt: 'echo first > first'}
""".replace("SETTLED", SETTLED)


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run of loops whose last rounds do less than those before."""
    return ran(make_repo(tmp_path_factory.mktemp("rounds") / "repo"), ROUNDS, "main")


@pytest.fixture(scope="module")
def told(rounds: Ran) -> Ran:
    """The same, as it is told later."""
    said = shoal_in(rounds.repo)("status", "--json")
    return Ran(rounds.repo, said, json.loads(said.out))


def test_what_is_told_later_of_a_loop_is_its_last_round(rounds: Ran, told: Ran) -> None:
    sessions = [one["session"] for one in rounds["group_item"]["worker_results"]]

    assert len(sessions) == 1
    assert [one["session"] for one in told["group_item"]["worker_results"]] == sessions
    assert (told.statuses["group_first"], told.workers("group_first")) == ("skipped", ["skipped"])


def test_work_of_a_round_is_merged_although_the_last_one_changed_nothing(rounds: Ran) -> None:
    assert (rounds.workers("one"), rounds["one"]["rounds"]) == (["no_changes"], 3)
    assert rounds.workers("cells") == ["no_changes"] * 2

    merged = json.loads(shoal_in(rounds.repo)("merge", "--json").out)

    there = git(rounds.repo, "ls-tree", "-r", "--name-only", merged["commit"]).split()
    assert {"one", "cell-1", "cell-2", "best", "first", "item-1", "item-2", "item-3", "item-9"} <= set(there)
    assert git(rounds.repo, "show", f"{merged['commit']}:one").split() == ["1", "2"]
    assert "lost-1" not in there, "who was not chosen is no part of it"
