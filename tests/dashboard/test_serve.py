"""What the page receives during a run, and what its buttons do."""

import contextlib
import json
import os
import signal
from pathlib import Path

from tests.cli.conftest import Shoal
from tests.conftest import git, make_repo
from tests.dashboard.serving import Dashboard, serving


def test_a_run_is_followed_answered_and_stopped(repo: Path, shoal: Shoal, dashboard: Dashboard) -> None:
    status, started = dashboard.act("repo", action="run", pipeline="release")
    run = started["document"]["run"]
    asking = dashboard.wait_for(lambda card: card.get("column") == "needs you")
    refused = dashboard.act("repo", action="approve", run=run, step="plan")
    answered = dashboard.act("repo", action="approve", run=run, step="ship", message="go on")
    path = f"/api/live?site=repo&run={run}"
    slow = dashboard.wait_for(lambda row: row.get("last") == "reading the parser", path)
    stopped = dashboard.act("repo", action="stop", target=slow["session"])
    ended = dashboard.wait_for(lambda row: row.get("session") == slow["session"] and row["ended"], path)
    dashboard.act("repo", action="stop", target=run)
    over = dashboard.wait_for(lambda card: card.get("run") == run and card.get("ended") is True)
    page = dashboard.get(f"/api/run/repo/{run}")

    assert (status, started["code"], asking["column"], asking["gates"][0]["message"]) == (
        200,
        0,
        "needs you",
        "Deploy it?",
    )
    assert refused[1]["code"] == 2
    assert "has not asked anything" in refused[1]["error"]
    assert answered[1]["document"]["answer"] == "approve"
    assert (stopped[1]["code"], ended["status"]) == (0, "cancelled")
    assert (over["status"], over["column"]) == ("degraded", "ready to merge")
    assert [(stage["name"], stage["needs"]) for stage in page["plan"]] == [
        ("plan", []),
        ("ship", ["plan"]),
        ("deploy", ["ship"]),
    ]
    assert [row["prompt"] for row in page["sessions"]][:1] == ["plan <script>alert(1)</script>"]
    assert dashboard.get(f"/api/report/repo/{run}")["run"] == run


def test_logs_diffs_timeline_and_merging(repo: Path, shoal: Shoal, dashboard: Dashboard) -> None:
    (repo / "p.yaml").write_text(
        'agents: {w: {adapter: command, command: [sh, -c, \'echo "$SHOAL_WORKER_INDEX" > n.txt; mkdir .github .github/workflows;'
        " echo x > .github/workflows/c.yml; echo said']}}\n"
        "steps: [{name: s, agent: w, prompt: x, concurrency: 2, output_artifacts: [{name: n, path: n.txt, type: text}]}]\n"
    )
    assert shoal("run", "p.yaml").code == 0
    card = dashboard.wait_for(lambda card: card.get("ended") is True and card["name"] == "p")
    rows = dashboard.get(f"/api/run/repo/{card['run']}")["sessions"]
    first, second = (row["session"] for row in rows)
    diff = dashboard.get(f"/api/diff/repo?a={first}")
    between = dashboard.get(f"/api/diff/repo?a={first}&b={second}")
    events = dashboard.get(f"/api/events/repo/{first}")
    later = dashboard.get(f"/api/events/repo/{first}?after={events[-1]['seq']}")
    ticks = dashboard.get(f"/api/timeline/repo/{card['run']}?sessions={first},{second}")
    preview = dashboard.get(f"/api/preview/repo/{card['run']}")
    artifact = dashboard.ask("GET", f"/api/artifact/repo/{first}/n")
    merged = dashboard.act(
        "repo",
        action="merge",
        run=card["run"],
        sessions=[first],
        allow_executable_config=True,
        into="main",
        strategy="auto",
    )
    undone = dashboard.act("repo", action="undo", run=card["run"])

    assert card["column"] == "ready to merge"
    assert diff["about"]["document"]["executable_config"] == [".github/workflows/c.yml"]
    assert "+++ b/n.txt" in diff["patch"]
    assert "-0\n+1\n" in between["patch"]
    assert "said" in [event["text"] for event in events if event["event"] == "Output"]
    assert later == []
    assert [kind for _, _, kind in ticks[first]["spans"]] == ["queue", "setup", "run", "seal"]
    assert len(preview["document"]["clashes"]) == 1
    assert (artifact.headers["content-disposition"], artifact.content) == ('attachment; filename="n.txt"', b"0\n")
    assert merged[1]["document"]["delivery"]["status"] == "delivered"
    assert undone[1]["code"] == 0
    assert "n.txt" not in git(repo, "ls-tree", "--name-only", "main")


def test_a_page_that_comes_back_gets_what_it_missed_and_nothing_twice(
    repo: Path, shoal: Shoal, dashboard: Dashboard
) -> None:
    assert shoal("run", "--task", "x", "--command", "true", "--sandbox", "none").code == 0
    dashboard.wait_for(lambda card: card.get("ended") is True)
    with contextlib.closing(dashboard.changes()) as stream:
        number, first = next(stream)
    assert shoal("run", "--task", "y", "--command", "true", "--sandbox", "none").code == 0
    missed: set[str] = set()
    with contextlib.closing(dashboard.changes(Last_Event_ID=number)) as stream:
        for _, changes in stream:
            # a run is shown before it has agents, and then has no prompt
            missed |= {change["document"]["prompt"] for change in changes if change["document"]["workers"]}
            if any(change["document"]["ended"] for change in changes):
                break

    assert [change["document"]["prompt"] for change in first] == ["x"]
    assert missed == {"y"}


def test_wrong_words_of_a_page_are_told_and_run_nothing(dashboard: Dashboard) -> None:
    bad: list[dict[str, object]] = [
        {"action": "clean"},
        {"action": "stop"},
        {"action": "stop", "target": 7},
        {"action": "run", "tasks": []},
        {"action": "run", "tasks": "x"},
        {"action": "merge", "run": "x\0y"},
    ]

    for fields in bad:
        status, answer = dashboard.act("repo", **fields)
        assert (status, set(answer)) == (400, {"error"}), fields
    assert dashboard.act("elsewhere", action="stop", target="x")[0] == 400
    assert dashboard.act("repo", action="stop", target="--now")[1]["code"] == 2
    assert dashboard.ask("POST", "/api/act/repo", b"[", X_Shoal="1").status == 400
    for path in ("/api/artifact/repo/x/..%2f..%2fledger.db", "/api/run/repo/x", "/api/events/repo/..%2fx"):
        assert dashboard.ask("GET", path).status == 404, path
    assert dashboard.ask("GET", "/static/../app.py").status == 404


def test_a_killed_run_is_shown_as_interrupted(repo: Path, shoal: Shoal, dashboard: Dashboard) -> None:
    started = json.loads(shoal("run", "--detach", "--json", "--task", "x", "--command", "sleep 60").out)
    dashboard.wait_for(lambda card: card.get("running") == 1)
    os.kill(started["pid"], signal.SIGKILL)
    card = dashboard.wait_for(lambda card: card.get("ended") is True)

    assert (card["status"], card["column"]) == ("interrupted", "failed")
    assert shoal("clean").code == 0


def test_a_killed_run_is_resumed_from_the_page(repo: Path, shoal: Shoal, dashboard: Dashboard, tmp_path: Path) -> None:
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
    known = json.loads(
        shoal("run", "--detach", "--json", "--task", "x", "--sandbox", "none", "--command", f"sh -c '{wait}'").out
    )
    dashboard.wait_for(lambda card: card.get("running") == 1)
    os.kill(known["pid"], signal.SIGKILL)
    dashboard.wait_for(lambda card: card.get("ended") is True)
    (tmp_path / "go").touch()
    status, answer = dashboard.act("repo", action="resume", run=known["run"])
    card = dashboard.wait_for(lambda card: card.get("status") == "succeeded")

    assert (status, answer["code"], answer["document"]["run"]) == (200, 0, known["run"])
    assert card["run"] == known["run"]


def test_several_repositories_are_shown_at_once(repo: Path, tmp_path: Path) -> None:
    other = make_repo(tmp_path / "other" / "repo")
    with serving(repo, str(repo), str(other), str(repo)) as dashboard:
        dashboard.open()
        sites = dashboard.get("/api/sites")["sites"]

    assert [(site["name"], site["folder"]) for site in sites] == [("repo", str(repo)), ("repo-2", str(other))]
