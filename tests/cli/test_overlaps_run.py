"""Sessions that changed the same files are reported during a run, once for each pair, in every output."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.cli.conftest import SHOAL, Shoal, environment, shoal_in
from tests.cli.flows import CHEAP, ran, written
from tests.conftest import git

CLASH = """
steps:
  - {name: a, agent: do, prompt: "echo a > same.txt; echo a > a.txt"}
  - {name: b, agent: do, prompt: "echo b > same.txt; echo b > b.txt"}
  - {name: c, agent: do, prompt: "echo c > c.txt"}
"""


def names(overlap: dict[str, Any]) -> list[str]:
    return sorted(session.rpartition("-")[0] for session in overlap["sessions"])


def test_a_pair_is_told_once_in_every_face(repo: Path) -> None:
    done = ran(repo, CLASH)
    shoal = shoal_in(repo)
    (overlap,) = done.report["overlaps"]
    status = json.loads(shoal("status", "--json").out)

    assert (names(overlap), overlap["files"], overlap["paths"]) == (["a", "b"], 1, ["same.txt"])
    assert overlap["conflicts"][0]["kind"] == "content"
    assert done.said.err.count("overlap  ") == 1
    assert "they conflict (content: same.txt)" in done.said.err
    assert status["overlaps"] == [overlap]
    assert "  x same.txt: " in shoal("status").out


def test_it_is_told_while_others_still_work(repo: Path, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    steps = f"""
    steps:
      - {{name: a, agent: do, prompt: "echo a > same.txt"}}
      - {{name: b, agent: do, prompt: "echo b > same.txt"}}
      - {{name: long, agent: do, prompt: "while [ ! -e {go_on} ]; do sleep 0.05; done"}}
    """
    words = [str(SHOAL), "run", written(repo, steps), "--events"]
    with subprocess.Popen(words, cwd=repo, env=environment(), stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        heard = (json.loads(line) for line in running.stdout)
        seen = next(one for one in heard if one["event"] == "OverlapSeen")
        go_on.touch()
        rest = [one["event"] for one in heard]

    assert (running.returncode, rest.count("OverlapSeen")) == (0, 0)
    assert rest[-1] == "RunEnded"
    assert seen["overlap"]["paths"] == ["same.txt"]


def test_lines_go_to_stderr_and_the_table_to_the_report(repo: Path, shoal: Shoal) -> None:
    lines = [f'  - {{name: s{number}, agent: do, prompt: "echo {number} > same.txt"}}\n' for number in range(3)]

    said = shoal("run", written(repo, "steps:\n" + "".join(lines)))

    assert (said.code, said.err.count("overlap  ")) == (0, 3)
    assert "overlap: 1 file changed by more than one agent" in said.out
    assert re.search(r"^  x same\.txt: s\d-\w+, s\d-\w+, s\d-\w+$", said.out, re.MULTILINE)


def test_what_stands_on_another_or_is_an_alternative_does_not_overlap(repo: Path) -> None:
    steps = """
    steps:
      - {name: first, agent: do, prompt: "echo 1 > same.txt"}
      - {name: then, needs: [first], agent: do, prompt: "echo 2 >> same.txt; echo then > then.txt"}
      - {name: also, needs: [first], agent: do, prompt: "echo also > also.txt"}
      - name: rivals
        agent: do
        prompt: "echo $SHOAL_WORKER_INDEX > rival.txt; echo x > then.txt"
        concurrency: 3
        select: {by: diff_size}
    """
    done = ran(repo, steps)

    assert done.said.code == 0, done.said.err
    assert [names(one) for one in done.report["overlaps"]] == [["rivals", "then"]], "only of the one that was chosen"


def test_work_that_was_built_upon_is_no_reason_to_be_warned(repo: Path, shoal: Shoal) -> None:
    steps = """
    steps:
      - {name: first, agent: do, prompt: "echo 1 > same.txt"}
      - {name: then, needs: [first], agent: do, prompt: "echo 2 >> same.txt"}
      - {name: bad, agent: do, prompt: "echo 3 > same.txt; exit 1", optional: true}
    """
    said = shoal("run", written(repo, steps))

    assert (said.code, "overlap  " in said.err) == (0, False)
    assert "overlap: none, no two independent branches changed the same file" in said.out


def test_an_overlap_without_a_conflict_is_told_as_that(repo: Path) -> None:
    steps = """
    steps:
      - {name: a, agent: do, prompt: "sed -i '1s/.*/a/' d0/f1.txt"}
      - {name: b, agent: do, prompt: "sed -i '20s/.*/b/' d0/f1.txt"}
    """
    done = ran(repo, steps)

    (overlap,) = done.report["overlaps"]
    assert (names(overlap), overlap["conflicts"]) == (["a", "b"], [])
    assert "both changed d0/f1.txt, without a conflict" in done.said.err


def test_odd_names_are_escaped_and_secrets_in_them_masked(repo: Path) -> None:
    secret = "not-a-real-key-but-long-enough"
    script = "printf x$SHOAL_SESSION > \"$(printf '\\033[2J')-$KEY\""
    text = f"""
    runtime: {{{CHEAP}}}
    agents:
      odd:
        adapter: command
        command: [sh, -c, {json.dumps(script)}]
        env: {{KEY: {{from: HOST_KEY}}}}
    steps: [{{name: one, agent: odd, prompt: x}}, {{name: two, agent: odd, prompt: x}}]
    """
    (repo / "p.yaml").write_text(text)

    said = shoal_in(repo)("run", "p.yaml", "--json", HOST_KEY=secret)

    assert said.code == 0, said.err
    assert json.loads(said.out)["overlaps"][0]["paths"][0].startswith("\x1b[2J-")
    assert secret not in said.out + said.err + shoal_in(repo)("status").out
    assert "\x1b" not in said.err


def test_a_merge_shows_in_the_status_with_what_is_left(repo: Path, shoal: Shoal) -> None:
    (repo / ".git/info/exclude").write_text("*.yaml\n")
    done = ran(repo, CLASH)
    before = json.loads(shoal("status", "--json").out)
    assert shoal("merge", "--into", "main", "--yes").code == 4
    after, told = json.loads(shoal("status", "--json").out), shoal("status").out

    assert (before["merge"], before["deliveries"]) == (None, [])
    statuses = {one["session"].rpartition("-")[0]: one["status"] for one in after["merge"]["results"]}
    assert sorted(statuses.values()) == ["conflicts", "merged", "merged"]
    assert after["merge"]["commit"] == git(repo, "rev-parse", "main")
    assert [one["into"] for one in after["deliveries"]] == ["main"]
    assert "2 of 3 sessions merged" in told
    assert "content: same.txt (with " in told
    assert "delivered into main" in told

    assert shoal("merge", "--undo", done.report["run"], "c").code == 0
    undone = json.loads(shoal("status", "--json").out)
    assert [one["session"].rpartition("-")[0] for one in undone["merge"]["results"]] == ["a"]


def test_workers_of_one_step_are_told_once_as_doing_the_same_task(repo: Path, shoal: Shoal) -> None:
    written(
        repo,
        """
        steps:
          - {name: many, agent: do, prompt: 'echo $SHOAL_WORKER_INDEX > same.txt', concurrency: 4}
          - {name: cells, agent: do, prompt: 'echo {{ matrix.n }} > cell.txt', strategy: {matrix: {n: [1, 2]}}}
        """,
    )

    said = shoal("run", "p.yaml")
    told = json.loads(shoal("status", "--json").out)["overlaps"]

    assert said.err.count("overlap  workers of many changed the same files (same.txt)") == 1
    assert said.err.count("overlap  ") == 2, "items of a matrix are tasks of their own"
    assert said.out.count("workers of many changed the same files") == 1
    assert sorted(str(one["step"]) for one in told) == ["None", *["many"] * 6]
