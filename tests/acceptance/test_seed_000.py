"""`concurrency: N`, each acceptance point of its document, from the command line."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from shoal.cli.main import exit_code
from shoal.testing.model import ModelServer, Say
from tests.cli.conftest import Shoal
from tests.cli.flows import CHEAP, Ran, ran, written
from tests.conftest import git, make_repo

ROOT = Path(__file__).parents[2]

# What an agent's own process saw, as JSON; then the second of three fails.
LOOK = r"""
printf '{"index": "%s", "count": "%s", "cwd": "%s", "branch": "%s", "home": "%s", "tmp": "%s", "port": "%s", ' \
  "$SHOAL_WORKER_INDEX" "$SHOAL_WORKER_COUNT" "$PWD" "$(git branch --show-current)" "$HOME" "$TMPDIR" "$SHOAL_PORT"
printf '"prompt": "%s", "before": "%s", "head": "%s"}\n' "$(cat)" "$(ls | tr '\n' ' ')" "$(git rev-parse HEAD)"
echo "$SHOAL_WORKER_INDEX" > mine.txt
echo "$SHOAL_WORKER_INDEX" > "$HOME/mine"
[ "$SHOAL_WORKER_INDEX" != 1 ] || { echo "no luck" >&2; exit 7; }
"""
WORKERS = """
steps:
  - {name: process-items, persona: worker, prompt: "Process {{ input }}", concurrency: 3, on_failure: best_effort}
  - name: linked
    persona: worker
    prompt: "Process {{ input }}"
    concurrency: 3
    on_failure: best_effort
    isolation_strategy: worktree
  - {name: gather, needs: [process-items], agent: do, prompt: 'cat "$SHOAL_INPUTS_DIR/process-items/aggregate.json"; ls > seen'}
"""
BOTH = pytest.mark.parametrize("step", ["process-items", "linked"])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run, behind the wall, of two steps with three workers each, the second of which fails, and one after them."""
    repo = make_repo(tmp_path_factory.mktemp("seed") / "repo")
    personas = "personas: {worker: {agent: look, system_prompt: You work.}}"
    return ran(repo, WORKERS, "--input", "the list", runtime="max_concurrent_workers: 6", more=personas, look=LOOK)


def saw(done: Ran, step: str) -> list[dict[str, str]]:
    return [json.loads(one["output"]) for one in done[step]["worker_results"]]


@BOTH
def test_concurrency_is_recognized_and_so_many_agents_are_spawned(done: Ran, step: str) -> None:
    seen = saw(done, step)

    assert [(one["index"], one["count"]) for one in seen] == [("0", "3"), ("1", "3"), ("2", "3")]
    assert done[step]["total_workers"] == 3


@BOTH
def test_each_agent_has_the_same_prompt_and_the_same_input(done: Ran, step: str) -> None:
    seen = saw(done, step)

    assert {one["prompt"] for one in seen} == {"Process the list"}
    assert {one["head"] for one in seen} == {done.report["base"]}
    assert {one["before"] for one in seen} == {"README.md d0 "}, "none sees what another has written"


@BOTH
def test_each_agent_has_a_workspace_a_branch_and_a_home_of_its_own(done: Ran, step: str) -> None:
    seen = saw(done, step)
    root = done.repo / ".shoal/workspaces" / done.report["run"] / step

    assert [one["cwd"] for one in seen] == [str(root / f"worker_{index}") for index in range(3)]
    assert done[step]["worker_workspaces"] == [one["cwd"] for one in seen]
    assert [one["branch"] for one in seen] == [one["branch"] for one in done[step]["worker_results"]]
    for private in ("branch", "home", "tmp", "port"):
        assert len({one[private] for one in seen}) == 3, private
    assert [done.shown(step, "mine.txt", index) for index in range(3)] == ["0", "1", "2"]


@BOTH
def test_results_are_collected_in_the_order_of_the_workers_with_failures_among_them(done: Ran, step: str) -> None:
    found = done[step]
    failed = found["worker_results"][1]

    assert [one["index"] for one in found["worker_results"]] == [0, 1, 2]
    assert done.workers(step) == ["succeeded", "failed", "succeeded"]
    assert (found["success_count"], found["fail_count"], found["cancelled_count"]) == (2, 1, 0)
    assert (failed["exit_code"], failed["files_changed"]) == (7, 1)
    assert "no luck" in failed["error"]
    assert found["status"] == "degraded"
    assert (done.said.code, done.report["status"]) == (1, "degraded")


def test_a_later_step_is_given_the_aggregate_and_no_workers_tree(done: Ran) -> None:
    given, told = json.loads(done.worker("gather")["output"]), done["process-items"]

    for name in ("total_workers", "success_count", "fail_count", "worker_workspaces"):
        assert given[name] == told[name], name
    assert [(one["index"], one["status"], one["output"], one["branch"]) for one in given["worker_results"]] == [
        (one["index"], one["status"], one["output"], one["branch"]) for one in told["worker_results"]
    ]
    assert "mine.txt" not in done.tree("gather")


def test_a_matrix_has_the_same_aggregate(repo: Path) -> None:
    done = ran(
        repo,
        """
        steps:
          - name: cells
            agent: do
            prompt: 'echo {{ matrix.item }} > {{ matrix.item }}.txt; [ {{ matrix.item }} != b ]'
            strategy: {matrix: {item: [a, b, c]}}
            on_failure: best_effort
          - {name: gather, needs: cells, agent: do, prompt: 'cat "$SHOAL_INPUTS_DIR/cells/aggregate.json"'}
        """,
    )
    found, given = done["cells"], json.loads(done.worker("gather")["output"])
    root = done.repo / ".shoal/workspaces" / done.report["run"] / "cells"

    assert (found["total_workers"], found["success_count"], found["fail_count"]) == (3, 2, 1)
    assert done.workers("cells") == ["succeeded", "failed", "succeeded"]
    assert found["worker_workspaces"] == [str(root / f"worker_{index}") for index in range(3)]
    for name in ("total_workers", "success_count", "fail_count", "worker_workspaces"):
        assert given[name] == found[name], name
    assert [result["status"] for result in given["worker_results"]] == done.workers("cells")


def test_the_agents_work_at_the_same_time(repo: Path, tmp_path: Path) -> None:
    """Each waits for a sign of all others, so one after the other would never end."""
    meeting = f"mkdir -p {tmp_path}/m; touch {tmp_path}/m/$SHOAL_WORKER_INDEX"
    waiting = f"until [ $(ls {tmp_path}/m | wc -l) = 4 ]; do sleep 0.02; done"

    done = ran(repo, f"steps: [{{name: meet, agent: do, prompt: '{meeting}; {waiting}', concurrency: 4, timeout: 40}}]")

    assert done.workers("meet") == ["no_changes"] * 4


def test_more_than_the_runtime_allows_is_clamped_with_a_warning(repo: Path, shoal: Shoal) -> None:
    steps = "steps: [{name: many, agent: do, prompt: 'echo x > x', concurrency: 5}]"
    done = ran(repo, steps, runtime=f"{CHEAP}, max_concurrent_workers: 2")
    written(repo, steps.replace("5", "11"))
    planned = shoal("run", "p.yaml", "--dry-run")

    assert done["many"]["total_workers"] == 2
    told = [note for note in done.report["notes"] if "clamped" in note]
    assert len(told) == 1
    assert "many" in told[0]
    assert "5" in told[0]
    assert "2" in told[0]
    assert told[0] in done.said.err, "a person sees it as the run begins"
    assert "at most 10 at once" in planned.out, "ten where the file does not say"
    assert "clamped to 10" in planned.out


def test_the_first_failure_stops_the_rest_and_their_work_is_kept(repo: Path, tmp_path: Path) -> None:
    """The second fails when both others have written their files, and they would never end by themselves."""
    busy = f"echo w > w$SHOAL_WORKER_INDEX; touch {tmp_path}/$SHOAL_WORKER_INDEX.begun; sleep 600"
    failing = f"until [ -e {tmp_path}/0.begun ] && [ -e {tmp_path}/2.begun ]; do sleep 0.02; done; echo w > w1; exit 5"
    done = ran(
        repo,
        """
        steps:
          - {name: work, agent: work, prompt: go, concurrency: 3}
          - {name: after, needs: work, agent: do, prompt: 'echo x > x'}
          - {name: aside, agent: do, prompt: 'echo x > x'}
        """,
        work=f'[ "$SHOAL_WORKER_INDEX" = 1 ] && {{ {failing}; }}; {busy}',
    )

    found = done["work"]
    assert done.workers("work") == ["cancelled", "failed", "cancelled"]
    assert (found["status"], found["success_count"], found["fail_count"], found["cancelled_count"]) == (
        "failed",
        0,
        1,
        2,
    )
    assert [done.shown("work", f"w{index}", index) for index in range(3)] == ["w"] * 3
    assert (done.statuses["after"], done.statuses["aside"]) == ("skipped", "succeeded")
    assert done.said.code == 1


def test_what_a_failure_means_is_said_by_the_step(repo: Path) -> None:
    done = ran(
        repo,
        """
        steps:
          - {name: partly, agent: second-fails, prompt: go, concurrency: 2, on_failure: best_effort}
          - {name: none-good, agent: do, prompt: exit 1, concurrency: 2, on_failure: best_effort}
          - {name: one-will-do, agent: second-fails, prompt: go, concurrency: 2, on_failure: any}
          - {name: enough, agent: second-fails, prompt: go, concurrency: 3, on_failure: {quorum: 2}}
          - {name: too-few, agent: second-fails, prompt: go, concurrency: 2, on_failure: {quorum: 2}}
          - {name: on-partly, needs: partly, agent: do, prompt: echo}
          - {name: on-too-few, needs: too-few, agent: do, prompt: echo}
        """,
        **{"second-fails": '[ "$SHOAL_WORKER_INDEX" != 1 ]'},
    )

    assert done.statuses == {
        "partly": "degraded",
        "none-good": "failed",
        "one-will-do": "succeeded",
        "enough": "succeeded",
        "too-few": "failed",
        "on-partly": "succeeded",
        "on-too-few": "skipped",
    }
    assert done.workers("partly") == ["no_changes", "failed"]


def test_retries_and_contracts_hold_for_each_worker(repo: Path) -> None:
    """The second worker does its work only when it has heard of the contract that its first attempt did not meet."""
    lazy = (
        'cp "$SHOAL_PROMPT_FILE" told; [ "$SHOAL_WORKER_INDEX" = 0 ] || grep -q "must be here" told && echo x > right'
    )
    done = ran(
        repo,
        """
        steps:
          - name: work
            agent: lazy
            prompt: go
            concurrency: 2
            retry: {max_attempts: 2, wait_seconds: 0}
            contract: {type: command, command: "test -s right || { echo it must be here; exit 1; }"}
        """,
        lazy=f"{lazy}; true",
    )

    first, second = done["work"]["worker_results"]
    assert done.workers("work") == ["succeeded", "succeeded"]
    assert (first["attempts"], second["attempts"]) == (1, 2)
    assert [one["contracts"] for one in (first, second)] == [
        [{"type": "command", "passed": True, "warning": False, "message": "met"}]
    ] * 2
    assert done.shown("work", "told", 0) == "go"
    assert "## This is attempt 2" in done.shown("work", "told", 1)
    assert len(git(repo, "for-each-ref", "refs/heads/agent/work").splitlines()) == 3, "each attempt is kept"


async def test_the_same_question_may_be_asked_at_different_temperatures(repo: Path, shoal: Shoal) -> None:
    """What a model really receives, over the wire."""
    async with ModelServer([Say("yes")]) as server:
        written(
            repo,
            """
            steps:
              - name: ask
                agent: claude
                prompt: "say yes"
                concurrency: 2
                vary: [{temperature: 0.2}, {temperature: 0.9, model: "anthropic:claude-opus-4-1"}]
            """,
            runtime="sandbox: none",
            more='  claude: {adapter: python, model: "anthropic:claude-3-5-haiku-latest"}\n',
        )
        own = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": server.url}
        said = await asyncio.to_thread(lambda: shoal("run", "p.yaml", **own))

    assert said.code == 0, said
    assert {request.user for request in server.requests} == {"say yes"}
    assert sorted((request.model, request.body.get("temperature")) for request in server.requests) == [
        ("claude-3-5-haiku-latest", 0.2),
        ("claude-opus-4-1", 0.9),
    ]


def test_concurrency_and_a_matrix_exclude_each_other_and_both_lines_are_named(repo: Path, shoal: Shoal) -> None:
    keys = "agent: do\n    prompt: go\n    concurrency: 2\n    strategy:\n      matrix: {k: [1, 2]}\n"
    written(repo, f"steps:\n  - name: both\n    {keys}")
    lines = (repo / "p.yaml").read_text().splitlines()
    first, second = (next(n for n, line in enumerate(lines, 1) if word in line) for word in ("concurrency", "matrix"))

    for command in ("run", "validate"):
        said = shoal(command, "p.yaml")

        assert said.code == 2
        assert f"p.yaml:{first}:5: `concurrency` and `strategy.matrix` (line {second}, " in said.err + said.out
        assert "exclude each other" in said.err + said.out
    assert not (repo / ".shoal").exists()


@pytest.mark.parametrize("written_as", ["-1", "0", "1.5", "'3'", "true", "three", "[3]", "{n: 3}", "1e400", ".nan"])
def test_what_is_no_number_of_agents_is_refused_at_its_place(
    repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], written_as: str
) -> None:
    monkeypatch.chdir(repo)
    written(repo, f"steps:\n  - name: x\n    agent: do\n    prompt: go\n    concurrency: {written_as}\n")

    code = exit_code(["run", "p.yaml"])

    line = len((repo / "p.yaml").read_text().splitlines())
    assert code == 2
    assert capsys.readouterr().err.startswith(f"p.yaml:{line}:18: ")
    assert not (repo / ".shoal").exists()


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("-3", "must be at least 1, not -3"),
        ("0", "must be at least 1, not 0"),
        ("1", "1 agent in all"),
        ("10", "10 agents in all"),
        ("11", "concurrency 11 clamped to 10"),
        ("50", "concurrency 50 clamped to 10"),
        ("'3'", "must be a whole number, not '3'"),
        ("2.5", "must be a whole number, not 2.5"),
        ("null", "must be a whole number, not nothing"),
    ],
)
def test_each_value_of_concurrency_has_its_answer(
    repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str, answer: str
) -> None:
    monkeypatch.chdir(repo)
    written(repo, f"steps:\n  - name: x\n    agent: do\n    prompt: go\n    concurrency: {value}\n")

    code = exit_code(["run", "p.yaml", "--dry-run"])

    printed = capsys.readouterr()
    is_refused = answer.startswith("must be")
    assert code == (2 if is_refused else 0)
    assert answer in (printed.err if is_refused else printed.out)
    assert ("clamped" in printed.out) == ("clamped" in answer)
    assert not (repo / ".shoal").exists()


def test_the_documentation_shows_concurrency() -> None:
    pages = {page.name: page.read_text() for page in (ROOT / "docs").glob("*.md")}
    examples = [block for text in pages.values() for block in re.findall(r"(?ms)^```yaml\n(.*?)^```", text)]

    assert "| `concurrency` |" in pages["yaml.md"]
    assert any(re.search(r"concurrency: \d", block) for block in examples), "a file that is run with all others"
