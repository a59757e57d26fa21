"""A verification gets the set-up of the agents: in a run that merges automatically, and in `shoal merge` later."""

import json
from pathlib import Path

from tests.cli.conftest import Shoal
from tests.cli.flows import ran
from tests.conftest import git

SETUP = "setup: 'test -n \"$KEY\" && mkdir -p deps && echo installed > deps/ready'"
STEPS = """\
steps:
  - {name: a, command: "cat deps/ready > a.txt", env: {KEY: literal}}
  - {name: b, command: "cat deps/ready > b.txt", env: {KEY: literal}}
"""
VERIFY = 'test -f deps/ready && test -f a.txt && test -z "$KEY"'


def layers(repo: Path) -> list[Path]:
    return list((repo / ".shoal/setup").glob("*/ready"))


def test_a_run_verifies_with_the_layer_that_its_agents_had(repo: Path) -> None:
    merge = f"merge: {{strategy: auto, verify: '{VERIFY}'}}"

    done = ran(repo, STEPS, runtime=f"max_concurrent_workers: 1, {SETUP}, {merge}")

    assert done.said.code == 0, done.said.err
    assert [one["status"] for one in done.report["merge"]["results"]] == ["merged", "merged"]
    assert len(layers(repo)) == 1, "set-up is made once for all"


def test_a_later_merge_verifies_with_the_set_up_of_the_run(repo: Path, shoal: Shoal) -> None:
    run = ran(repo, STEPS, runtime=f"max_concurrent_workers: 1, {SETUP}").report["run"]

    done = shoal("merge", run, "--verify", VERIFY, "--json")

    assert [one["status"] for one in json.loads(done.out)["results"]] == ["merged", "merged"], done.err
    assert len(layers(repo)) == 1, "the layer of the run is used again"


def test_a_later_merge_makes_the_set_up_anew_where_it_is_gone(repo: Path, shoal: Shoal) -> None:
    run = ran(repo, STEPS, runtime=f"max_concurrent_workers: 1, {SETUP}").report["run"]
    shoal("clean")
    assert not layers(repo)

    done = shoal("merge", run, "--verify", VERIFY, "--json")

    assert [one["status"] for one in json.loads(done.out)["results"]] == ["merged", "merged"], done.err
    assert "deps/ready" not in git(repo, "ls-tree", "-r", "--name-only", f"shoal/{run}")
