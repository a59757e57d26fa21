"""The commands that show what runs left: status, logs, diff, open."""

import json
import os
import pty
import re
import subprocess
from pathlib import Path

from tests.cli.conftest import SHOAL, Shoal, environment
from tests.conftest import git


def test_status_shows_the_latest_run(ran: Shoal) -> None:
    latest = json.loads(ran("status", "--json").out)
    said = ran("status", latest["run"][:-2])

    assert latest["status"] == "succeeded"
    assert f"{latest['run']} succeeded: 2 of 2 agents" in said.out


def test_a_killed_run_is_shown_as_interrupted(repo: Path, shoal: Shoal) -> None:
    words = ["run", "--events", "--task", "x", "--command", "sh -c 'echo half > half.txt; echo ready; sleep 60'"]
    with subprocess.Popen([SHOAL, *words], cwd=repo, env=environment(), stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        next(line for line in running.stdout if '"ready"' in line)
        alive, shown = json.loads(shoal("status", "--json").out), shoal("status").out
        running.kill()
    killed = json.loads(shoal("status", "--json").out)
    told, refused = shoal("status").out, shoal("diff")
    dry = shoal("clean", "--dry-run")
    cleaned = shoal("clean")
    branch = git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent")

    assert alive["status"] == "running"
    assert alive["steps"][0]["worker_results"][0]["duration_seconds"] > 0
    assert re.search(r"  running  \d+\.\d s  -", shown), shown
    assert (killed["status"], killed["steps"][0]["worker_results"][0]["status"]) == ("interrupted", "interrupted")
    assert "interrupted  -" in told
    assert "`shoal clean` or the next run recovers" in told
    assert (refused.code, "`shoal clean` recovers" in refused.err) == (2, True)
    assert "`shoal clean` or the next run recovers" not in shoal("status").out, "it is done"
    assert "killed run" in dry.out
    assert cleaned.code == 0
    assert f"{branch}, 1 file" in cleaned.out
    assert git(repo, "show", f"{branch}:half.txt") == "half"


def test_logs_show_what_the_agent_said(ran: Shoal) -> None:
    assert "I am one\n" in ran("logs", "one").out
    assert "I am two\n" in ran("logs", "two", "--follow").out
    assert [json.loads(line)["event"] for line in ran("logs", "one", "--json").out.splitlines()] == [
        "AgentStarted",
        "Output",
        "ResourcesSampled",
        "AgentEnded",
    ]


def test_logs_follow_until_the_session_has_ended(repo: Path, shoal: Shoal) -> None:
    gate = "sh -c 'echo first; i=0; while [ $i -lt 20 ]; do sleep 0.1; i=$((i+1)); done; echo last'"
    words = ["run", "--events", "--task", "x", "--command", gate]
    with subprocess.Popen([SHOAL, *words], cwd=repo, env=environment(), stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        next(line for line in running.stdout if '"first"' in line)
        said = shoal("logs", "-f")
        running.communicate(timeout=30)

    assert "first\nlast\n" in said.out
    assert "no_changes" in said.out.splitlines()[-1]


def test_logs_leave_out_colours_and_escape_the_rest(shoal: Shoal) -> None:
    script = r"""sh -c 'printf "\\033[1;31mred\\033[0m \\033[2J\\n"'"""
    shoal("run", "--task", "x", "--command", script)

    assert "\nred \\x1b[2J\n" in shoal("logs").out


def test_names_are_prefixes_that_fit_one(ran: Shoal) -> None:
    unknown, many = ran("status", "zzz"), ran("diff", "")

    assert (unknown.code, many.code) == (2, 2)
    assert "zzz" in unknown.err
    assert "matches 2 sessions" in many.err, "every name begins with nothing"


def test_before_any_run_there_is_nothing_to_look_at(shoal: Shoal, repo: Path) -> None:
    assert [shoal(command).code for command in ("status", "open")] == [2, 2]
    assert not (repo / ".shoal").exists()


def test_a_diff_can_be_applied(shoal: Shoal, repo: Path) -> None:
    script = "sh -c 'printf \"\\\\000\\\\377\" > bin; echo x >> README.md; rm d0/f1.txt; ln -s README.md link'"
    assert shoal("run", "--task", "x", "--command", script).code == 0
    branch = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent")
    git(repo, "config", "diff.noprefix", "true")

    subprocess.run(["bash", "-c", f"{SHOAL} diff | git apply --index"], cwd=repo, env=environment(), check=True)

    assert git(repo, "write-tree") == git(repo, "rev-parse", f"{branch}^{{tree}}")


def test_a_diff_tells_its_files(ran: Shoal) -> None:
    document = json.loads(ran("diff", "one", "--json").out)

    assert document["files"] == [{"path": "same.txt", "added": 1, "deleted": 0}]
    assert document["branch"].startswith("agent/one/")
    assert ran("diff", "one", "--name-only").out == "same.txt\n"
    assert "1 insertion" in ran("diff", "one", "--stat").out
    assert (document["executable_config"], ran("diff", "one").err) == ([], ""), "nothing of it runs by itself"
    assert ran("diff", "--stat", "--json").code == 2


def test_a_diff_is_escaped_for_a_terminal(shoal: Shoal, repo: Path) -> None:
    assert shoal("run", "--task", "x", "--command", "sh -c 'printf \"\\\\033[2J\\\\n\" > a'").code == 0

    shown = at_a_terminal(repo, "diff")

    assert "+\\x1b[2J" in shown
    assert "\x1b" not in shown


def test_a_diff_names_first_what_could_run_on_a_persons_machine(shoal: Shoal, repo: Path) -> None:
    script = "mkdir .vscode; echo x > .vscode/tasks.json; echo x > .envrc; echo x > plain.txt"
    assert shoal("run", "--task", "x", "--command", f"sh -c '{script}'").code == 0
    warning = "warning: review before you merge, these files can run code on your machine: .envrc, .vscode/tasks.json\n"

    piped, named = shoal("diff"), shoal("diff", "--name-only")
    document = json.loads(shoal("diff", "--json").out)

    assert (piped.err, named.err) == (warning, warning)
    assert piped.out.startswith("diff --git "), "what is piped stays a patch"
    assert document["executable_config"] == [".envrc", ".vscode/tasks.json"]
    assert at_a_terminal(repo, "diff").startswith(f"{warning}diff --git ")


def test_a_diff_of_work_that_was_refused_says_where_the_work_is(shoal: Shoal, repo: Path) -> None:
    hostile = "for key in path update url; do git config -f .gitmodules submodule.x.$key !x; done"
    assert shoal("run", "--task", "x", "--command", f"sh -c '{hostile}'").code == 1

    said = shoal("diff")

    assert (said.code, said.out) == (0, "")
    assert f"its raw files are in {repo}/.shoal/boxes/" in said.err


ODD = (b"\x1b[2J", b"a\nb", "\u202egnp.exe".encode(), b"\xff", b".claude/\x1b]0;x\x07\n\xff\xe2\x80\xae")


def test_odd_names_are_escaped_in_every_form_of_a_diff(shoal: Shoal, repo: Path) -> None:
    (repo / "make.py").write_text(f"import os\nos.mkdir('.claude')\nfor n in {ODD!r}: open(n, 'w').write('x')\n")
    git(repo, "add", "make.py")
    git(repo, "commit", "-qm", "make")
    assert shoal("run", "--task", "x", "--command", "python3 make.py").code == 0

    texts = [shoal("diff"), shoal("diff", "--stat"), shoal("diff", "--name-only")]
    written = shoal("diff", "--json").out
    at_terminal = at_a_terminal(repo, "diff")

    for text in (*(said.out + said.err for said in texts), written, at_terminal):
        assert text.isascii()
        assert text.replace("\n", "").isprintable()
        assert "gnp.exe" in text
    assert all(r".claude/\x1b]0;x\x07\x0a\xff\u202e" in said.err for said in texts), "named in the warning"
    document, names = json.loads(written), {os.fsdecode(name) for name in ODD}
    assert {file["path"] for file in document["files"]} == names
    assert document["executable_config"] == [os.fsdecode(ODD[-1])]


def test_an_opened_branch_is_a_worktree_that_runs_nothing(ran: Shoal, ran_in: Path, tmp_path: Path) -> None:
    hook = ran_in / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hook-ran\n")
    hook.chmod(0o755)

    first, again = ran("open", "one"), ran("open", "one")
    place = Path(first.out.strip())

    assert (first.code, again.code, again.out) == (0, 0, first.out)
    assert (place / "same.txt").read_text() == "one\n"
    assert git(place, "status", "--porcelain") == ""
    assert git(place, "symbolic-ref", "--short", "HEAD").startswith("agent/one/")
    assert git(ran_in, "status", "--porcelain", "--untracked-files=no") == ""
    assert not (tmp_path / "hook-ran").exists()


def test_a_branch_opens_where_one_likes(ran: Shoal, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")

    assert ran("open", "two", "--path", str(tmp_path / "full")).code == 2
    assert ran("open", "two", "--path", str(tmp_path / "mine")).out == f"{tmp_path / 'mine'}\n"
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"


def at_a_terminal(repo: Path, *words: str, **env: str) -> str:
    """Run the command with a terminal for its output, and give what it wrote there."""
    ours, theirs = pty.openpty()
    given = environment(**({"GIT_PAGER": "cat"} | env))
    with subprocess.Popen([SHOAL, *words], cwd=repo, env=given, stdout=theirs, stderr=theirs) as running:
        os.close(theirs)
        shown = b""
        while chunk := read(ours):
            shown += chunk
        running.wait(timeout=30)
    os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # a terminal whose other side is closed gives EIO
        return b""


def test_a_step_means_its_session_of_the_latest_run_and_an_end_means_any(shoal: Shoal) -> None:
    first, second = (
        json.loads(shoal("run", "--json", "--task", said, "--command", "sh -c 'cat; cat > x.txt'").out)
        for said in ("one", "two")
    )
    end = first["steps"][0]["worker_results"][0]["session"].rsplit("-", 1)[1]

    assert "\ntwo\n" in shoal("logs", "task-1").out
    assert "\none\n" in shoal("logs", end).out
    assert json.loads(shoal("diff", "--json", f"agent/one/{end}").out)["session"] == f"one-{end}"
    assert json.loads(shoal("status", "--json", first["run"]).out)["run"] == first["run"]
    assert json.loads(shoal("status", "--json", "adhoc").out)["run"] == second["run"]


def test_what_an_agent_was_asked_is_shown_everywhere_escaped(shoal: Shoal) -> None:
    said = shoal("run", "--task", "fix the\nlogin \x1b[2Jtest", "--command", "true")
    shown = r"fix the login \x1b[2Jtest"

    assert re.search(rf"started  fix-login-2jtest-\w+  {re.escape(shown)}\n", said.out)
    assert f"    task: {shown}\n" in said.out
    assert f"    task: {shown}\n" in shoal("status").out
    assert f"-- prompt: {shown} --\n" in shoal("logs").out
    assert json.loads(shoal("status", "--json").out)["steps"][0]["worker_results"][0]["prompt"].startswith(
        "fix the login"
    )


def test_a_secret_in_a_prompt_is_masked_before_the_prompt_is_cut(shoal: Shoal, repo: Path) -> None:
    secret = "not-a-real-key-but-long-enough"
    (repo / "shoal.yaml").write_text(
        "agents: {x: {adapter: command, command: ['true'], env: {KEY: {from: HOST_KEY}}}}\n"
        f"steps: [{{name: one, agent: x, prompt: '{'x' * 190} {secret}'}}]\n"
    )

    said = shoal("run", "--events", HOST_KEY=secret)

    assert said.code == 0
    assert secret[:8] not in said.out + shoal("status", "--json").out
    assert "x" * 190 in said.out


def test_a_program_that_the_box_does_not_show_is_explained(shoal: Shoal) -> None:
    said = shoal("run", "--task", "x", "--command", "sh -c no-such-program")

    assert "it exited with 127" in said.out
    assert said.out.count("not the rest of your PATH") == 2, "when it happens, and in the report"
    assert "not the rest of your PATH" in shoal("logs").out


def test_other_runs_are_listed_one_by_one(shoal: Shoal) -> None:
    runs = [json.loads(shoal("run", "--json", "--task", "x", "--command", "true").out)["run"] for _ in range(2)]

    assert shoal("status").out.endswith(f"\n  {runs[0]}  succeeded  just now\n")


def test_the_logs_of_a_run_name_the_agent_of_each_line(ran: Shoal) -> None:
    run = json.loads(ran("status", "--json").out)["run"]

    for words in (("logs", run), ("logs", "-f", run)):
        said = ran(*words)

        assert said.code == 0
        assert re.search(r"^one-\w+ \| I am one$", said.out, re.MULTILINE)
        assert re.search(r"^two-\w+ \| -- succeeded in ", said.out, re.MULTILINE)
        assert all(re.match(r"(one|two)-\w+ \| ", line) for line in said.out.splitlines())
