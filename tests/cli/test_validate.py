"""`shoal validate`: every problem with its position."""

import json
from pathlib import Path

from tests.cli.conftest import Shoal


def test_a_right_file_is_told_with_what_it_holds(shoal: Shoal, pipelines: Path) -> None:
    said = shoal("validate", "shoal.yaml")

    assert (said.code, said.err) == (0, "")
    assert said.out == "shoal.yaml: valid, both (2 steps, 2 agents), broken (1 step, 1 agent)\n"


def test_a_file_of_agents_only_is_right(shoal: Shoal, repo: Path) -> None:
    (repo / "agents.yaml").write_text("agents: {x: {adapter: command, command: [make]}}\n")

    assert shoal("validate", "agents.yaml").code == 0


def test_every_problem_of_every_file_has_its_place(shoal: Shoal, repo: Path, pipelines: Path) -> None:
    (repo / "a.yaml").write_text("steps:\n  - name: a\n    concurency: 3\n    prompt: x\n")
    (repo / "b.yaml").write_text("steps: 3\n")

    said = shoal("validate", "a.yaml", "shoal.yaml", "b.yaml")
    document = json.loads(shoal("validate", "--json", "a.yaml", "shoal.yaml").out)

    assert said.code == 2
    assert "a.yaml:3:5: " in said.err
    assert "`concurrency`" in said.err
    assert "b.yaml:1:" in said.err
    assert "shoal.yaml: valid" in said.out
    assert [one["ok"] for one in document["files"]] == [False, True]
    assert document["files"][0]["problems"][0]["line"] == 2


def test_a_missing_file_is_told(shoal: Shoal) -> None:
    said = shoal("validate", "nowhere.yaml")

    assert said.code == 2
    assert "nowhere.yaml" in said.err


def test_without_a_name_it_is_the_projects_own_file_from_any_folder_of_it(
    shoal: Shoal, repo: Path, pipelines: Path
) -> None:
    (repo / "deep" / "down").mkdir(parents=True)

    validated = shoal("validate", cwd=repo / "deep" / "down")
    planned = shoal("run", "both", "--dry-run", cwd=repo / "deep" / "down")
    pipelines.write_text("steps: 3\n")
    wrong = shoal("run", cwd=repo / "deep")

    assert validated.out.startswith("../../shoal.yaml: valid, both ")
    assert (planned.code, planned.err) == (0, "")
    assert wrong.code == 2
    assert wrong.err.startswith("../shoal.yaml:1:8: ")
