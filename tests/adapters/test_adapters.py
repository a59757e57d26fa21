"""Kinds of agent: the command for a task, and what the scripted agent does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.adapters.client import AdapterHost, this_host, usable_python
from shoal.adapters.command import CommandAdapter
from shoal.adapters.kind import NOWHERE
from shoal.adapters.registry import ADAPTERS, adapter
from shoal.adapters.scripted import Scripted
from shoal.errors import BadInput, UnknownName
from shoal.model.agent import ACP, CLIENTS, AgentSpec
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask
from shoal.pipeline.keys.script import script
from shoal.pipeline.names import OWN as NAMES

HOST = AdapterHost(python=Path("/opt/py/bin/python3.12"), own_python=Path(sys.executable), programs=Path("/opt/shoal"))


def task(**spec: str | tuple[str, ...]) -> ResolvedTask:
    return ResolvedTask(name="t", prompt="do é", agent=AgentSpec(name="x", adapter="command", **spec))  # type: ignore[arg-type]


def ran(actions: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the actions, written as YAML, like a session, but without a sandbox."""
    made = adapter("scripted", this_host()).invocation(task(script=script(actions, "s.yaml")), NOWHERE)
    return subprocess.run(made.argv, cwd=cwd, input=made.stdin.decode(), capture_output=True, text=True, check=False)


def test_a_command_gets_the_prompt_on_stdin() -> None:
    made = CommandAdapter().invocation(task(command=("sh", "-c", "cat")), NOWHERE)

    assert (made.argv, made.stdin, made.needs) == (("sh", "-c", "cat"), "do é".encode(), ())


def test_a_scripted_agent_gets_its_script_on_stdin() -> None:
    made = adapter("scripted", HOST).invocation(task(script="[]"), NOWHERE)

    assert made.argv == ("/opt/py/bin/python3.12", "-I", "-S", "/opt/shoal/scripted_agent.py")
    assert made.stdin == b"[]"
    assert made.needs == (Path("/opt/shoal/scripted_agent.py"), HOST.python, Path("/opt/py/lib"))


def test_an_interpreter_of_the_system_needs_nothing_more() -> None:
    made = Scripted(python=Path("/usr/bin/python3.11"), program=Path("/p.py")).invocation(task(script="[]"), NOWHERE)

    assert made.needs == (Path("/p.py"),)


@pytest.mark.parametrize("name", sorted({*ADAPTERS} - {*CLIENTS}))
def test_every_plain_kind_has_its_name_and_refuses_an_agent_without_work(name: str) -> None:
    kind = adapter(name, HOST)

    assert (kind.name, kind.default_network) == (name, Network.HOST if name == ACP else Network.NONE)
    with pytest.raises(BadInput):
        kind.invocation(task(), NOWHERE)


@pytest.mark.parametrize("name", CLIENTS)
def test_every_client_has_its_name_the_network_and_what_must_be_known_of_it(name: str) -> None:
    kind = adapter(name, HOST)

    assert (kind.name, kind.default_network) == (name, Network.GATEWAY)
    assert kind.client is not None
    assert kind.client.install
    assert kind.client.login
    assert kind.reader() is not None
    assert kind.invocation(task(), NOWHERE).argv[0] == kind.client.program
    assert kind.invocation(task(command=("/opt/x",)), NOWHERE).argv[0] == "/opt/x"


def test_documents_know_the_same_adapters() -> None:
    assert set(NAMES) == set(ADAPTERS) - {"function"}  # which only a program can give


def test_an_unknown_adapter_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'command'"):
        adapter("comand", HOST)


def test_the_interpreter_of_the_system_is_preferred_when_new_enough(tmp_path: Path) -> None:
    own = Path(sys.executable)
    for name in ("python3.8", "python3.9", "python3.13", "strange"):
        (tmp_path / name).touch()
        (tmp_path / f"to-{name}").symlink_to(name)

    chosen = [usable_python(tmp_path / f"to-{name}", own).name for name in ("python3.9", "python3.13")]
    refused = [usable_python(tmp_path / f"to-{name}", own) for name in ("python3.8", "strange", "missing")]

    assert chosen == ["python3.9", "python3.13"]
    assert refused == [own.resolve()] * 3


def test_files_are_written_appended_and_deleted(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("x")
    actions = """
- write: {path: deep/er/a.txt, content: "é\\r\\n"}
- append: {path: deep/er/a.txt, content: more}
- append: {path: new.txt, content: "{prompt} ${HOME}"}
- delete: old.txt
"""

    done = ran(actions, tmp_path)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "deep/er/a.txt").read_bytes() == "é\r\nmore".encode()
    assert (tmp_path / "new.txt").read_text() == "{prompt} ${HOME}"
    assert not (tmp_path / "old.txt").exists()


def test_words_and_commands_come_out_in_order(tmp_path: Path) -> None:
    done = ran("[{say: é}, {run: [echo, $HOME]}, {run: 'echo two; cat'}, {sleep: 0}, {say: three}]", tmp_path)

    assert (done.returncode, done.stdout) == (0, "é\n$HOME\ntwo\nthree\n")


@pytest.mark.parametrize(
    ("actions", "code", "stderr"),
    [
        ("[{fail: no luck}, {say: never}]", 1, "no luck\n"),
        ("[{exit: 7}, {say: never}]", 7, ""),
        ("[{run: exit 3}, {say: never}]", 1, "run: /bin/sh ended with 3\n"),
        ("[{run: kill -9 $$}, {say: never}]", 1, "run: /bin/sh got signal 9\n"),
        ("[{run: [no-such-program]}, {say: never}]", 1, "run: no-such-program: No such file or directory\n"),
        ("[{delete: missing}, {say: never}]", 1, "[Errno 2] No such file or directory: 'missing'\n"),
    ],
)
def test_the_first_failure_ends_the_agent(tmp_path: Path, actions: str, code: int, stderr: str) -> None:
    done = ran(actions, tmp_path)

    assert (done.returncode, done.stdout, done.stderr) == (code, "", stderr)


def test_an_ignored_failure_does_not(tmp_path: Path) -> None:
    actions = "[{run: exit 3, ignore_failure: true}, {run: [no-such], ignore_failure: true}, {say: on}]"

    done = ran(actions, tmp_path)

    assert (done.returncode, done.stdout) == (0, "on\n")


def test_a_large_script_fits(tmp_path: Path) -> None:
    text = "x" * 500_000

    done = ran(json.dumps([{"write": {"path": "a", "content": text}}]), tmp_path)

    assert done.returncode == 0
    assert (tmp_path / "a").read_text() == text


def test_kinds_of_agent_import_nothing_heavy() -> None:
    look = "import sys, shoal.adapters.registry; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)

    assert {"pydantic", "ruamel", "subprocess", "asyncio"} & set(done.stdout.split()) == set()
