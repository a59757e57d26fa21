"""`shoal nodes`, `--on`, `runtime.nodes` and `needs_node`, as a person uses them."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Shoal
from tests.conftest import git

FILE = """
runtime:
  nodes: [{host: pipe, capacity: 1, labels: {gpu: true, memory: 64}}, {host: pipe, capacity: 2, labels: {memory: 8}}]
  placement: pack
agents: {e: {adapter: command, command: [sh, -c, "echo $SHOAL_WORKER_INDEX > n-$SHOAL_WORKER_INDEX"], needs_node: {memory: 16}}}
steps: [{name: s, agent: e, prompt: x, concurrency: 2, needs_node: {gpu: true}}]
"""


def test_agents_run_on_the_nodes_that_have_what_they_need(repo: Path, shoal: Shoal) -> None:
    (repo / "shoal.yaml").write_text(FILE)

    done = shoal("run", "--json")

    assert done.code == 0, done.err
    workers = json.loads(done.out)["steps"][0]["worker_results"]
    assert [worker["node"] for worker in workers] == ["pipe-1", "pipe-1"]
    assert "on node pipe-1" in shoal("status").out


def test_a_label_that_no_node_has_is_refused_before_anything_starts(repo: Path, shoal: Shoal) -> None:
    (repo / "shoal.yaml").write_text(FILE.replace("needs_node: {gpu: true}", "needs_node: {tpu: true}"))

    done = shoal("run")

    assert done.code == 5
    assert "a node with memory: 16, tpu: True" in done.err
    assert git(repo, "for-each-ref", "refs/heads/agent", "refs/shoal") == ""
    assert "no runs" in shoal("runs").out + shoal("runs").err


def test_a_plan_that_a_node_cannot_run_is_refused_with_its_reason(repo: Path, shoal: Shoal) -> None:
    (repo / "shoal.yaml").write_text(
        "runtime: {nodes: [pipe], toolchains: [~/only-here]}\nagents: {e: {adapter: command, command: [sh, -c, 'true']}}\n"
        "steps: [{name: s, agent: e, prompt: x}]\n"
    )

    done = shoal("run")

    assert done.code == 2
    assert "only-here" in done.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nodes: [-oProxyCommand=x]", "names no node"),
        ("nodes: [{host: pipe, capacity: 0}]", "capacity"),
        ("nodes: [{host: pipe, label: {}}]", "labels"),
        ("nodes: [{host: pipe, labels: {'a b': 1}}]", "is no label"),
        ("placement: tight", "placement"),
    ],
)
def test_mistakes_are_reported_with_their_place(repo: Path, shoal: Shoal, line: str, message: str) -> None:
    (repo / "shoal.yaml").write_text(f"runtime:\n  {line}\nsteps: [{{name: s, command: 'true'}}]\n")

    done = shoal("validate", "shoal.yaml")

    assert done.code == 2
    assert "shoal.yaml:2:" in done.err + done.out
    assert message in done.err + done.out


def test_nodes_are_listed_with_what_they_offer(repo: Path, shoal: Shoal) -> None:
    done = shoal("nodes", "--on", "pipe:3", "--json")

    assert done.code == 0, done.err
    (node,) = json.loads(done.out)["nodes"]
    assert (node["node"], node["ready"], node["capacity"]) == ("pipe", True, 3)
    assert "bubblewrap" in node["sandboxes"]
    assert node["load"]["memory_free_mb"] > 0


def test_without_nodes_it_says_where_to_name_them(repo: Path, shoal: Shoal) -> None:
    done = shoal("nodes")

    assert done.code == 2
    assert "`--on`" in done.err
