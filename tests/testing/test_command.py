"""The model server as a command, and its scripts in files."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.errors import BadInput
from shoal.testing.model import Cut, Delay, Fail, Garble, Hang, Say, Usage, Use
from shoal.testing.model.directives import SCENARIOS
from shoal.testing.model.scripts import script_of

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
COMMAND = (sys.executable, "-m", "shoal.testing.model")
SCRIPT = """
- say: hello
  usage: {input: 10, output: 2}
- {use: write, arguments: {path: a, content: b}, say: I write.}
- {use: apply_patch, arguments: as it is}
- together: [{use: write}, {use: shell, arguments: {command: ls}}]
- {fail: 429, message: slow down, retry_after: 1.5, times: 2}
- {say: late, delay: 0.5, between: 0.1}
- {fail: 500, delay: 1}
- cut: 3
- {cut: 1, after_bytes: 20}
- garble: true
- hang: true
"""


@contextlib.contextmanager
def running(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def ask(url: str, text: str) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    made = urllib.request.Request(f"{url}/v1/messages", json.dumps(body).encode(), {"x-api-key": "s3cret"})
    with urllib.request.urlopen(made, timeout=20) as response:
        answer: str = json.load(response)["content"][0]["text"]
        return answer


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_prints_its_address_logs_and_ends_when_told(tmp_path: Path, number: int) -> None:
    log = tmp_path / "log"
    with running("--log", str(log)) as (process, url):
        assert ask(url, "[[s:text say=yes]]") == "yes"
        process.send_signal(number)
        assert process.wait(20) == 0

    asked, turn = map(json.loads, log.read_text().splitlines())
    assert asked["body"]["messages"][0]["content"] == "[[s:text say=yes]]"
    assert "yes" in turn["turn"]
    assert "s3cret" not in log.read_text()


def test_it_plays_a_file(tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text('[{"say": "from a file"}]')
    with running("--script", str(tmp_path / "script.json")) as (_, url):
        assert ask(url, "hi") == "from a file"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "0.0.0.0"), "loopback only"),
        (("--script", "/nowhere"), "/nowhere: the script cannot be read"),
        (("--port", "no"), "invalid int value"),
    ],
)
def test_what_cannot_be_is_refused(options: tuple[str, ...], said: str) -> None:
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_said_plainly() -> None:
    with running() as (_, url):
        done = subprocess.run([*COMMAND, "--port", url.rpartition(":")[2]], capture_output=True, text=True, timeout=60)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_file_has_all_turns(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(SCRIPT)

    assert script_of(tmp_path / "script") == (
        Say("hello", Usage(10, 2)),
        Use("write", {"path": "a", "content": "b"}, "I write."),
        Use("apply_patch", "as it is"),
        (Use("write"), Use("shell", {"command": "ls"})),
        Fail(429, "slow down", 1.5, 2),
        Delay(0.5, Say("late"), 0.1),
        Delay(1, Fail(500)),
        Cut(3),
        Cut(1, 20),
        Garble(),
        Hang(),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- say: a\n- sya: b\n", "script:2:3: "),
        ("- {say: a, fail: 500}\n", "`say` and `fail` in one item"),
        ("- {delay: 1}\n", "no turn in one item"),
        ("- fail: 99\n", "script:1:9: "),
        ("say: a\n", "script:1:1: "),
        ("- [\n", "script:"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_place(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "script").write_text(text)

    with pytest.raises(BadInput) as caught:
        script_of(tmp_path / "script")

    assert said in str(caught.value)


def test_the_command_and_the_file_in_the_docs_are_right(tmp_path: Path) -> None:
    page = PAGE.read_text()
    (command,) = re.findall(r"^```sh\n(python .*)\n```", page, re.MULTILINE)
    (written,) = re.findall(r"^```json\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "turns.json").write_text(written)
    options = command.replace("turns.json", f"{tmp_path}/turns.json").replace("requests.jsonl", f"{tmp_path}/log")

    with running(*options.split()[3:]) as (_, url):
        assert ask(url, "hi") == "ok", "it has no tools"
    assert len(script_of(tmp_path / "turns.json")) == 6
    assert (tmp_path / "log").exists()


def test_each_scenario_is_in_the_docs() -> None:
    page = PAGE.read_text().partition("### Directives in prompts")[2]

    assert {name for name in (*SCENARIOS, "loop") if not re.search(rf"[`]{name}[ `]", page)} == set()
