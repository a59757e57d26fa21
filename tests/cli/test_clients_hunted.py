"""Broken clients and adapters: one line names the culprit, and others still work."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import SHOAL, Shoal, environment

BROKEN = {
    "cannot be imported": ("import nothing_like_this", "ModuleNotFoundError: No module named 'nothing_like_this'"),
    "raises": ("def make():\n    raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "is no adapter": ("def make():\n    return 42", "'int' object has no attribute 'name'"),
    "is no function": ("make = 3", "'int' object is not callable"),
    "is not there": ("", "has no attribute 'make'"),
}
MINE = """\
agents: {mine: {adapter: odd one}}
steps: [{name: a, agent: mine, prompt: x}]
"""
OTHER = """\
agents: {mine: {adapter: scripted, script: [{say: hello}]}}
steps: [{name: a, agent: mine, prompt: x}]
"""
LATE = """\
from shoal.model.policy import Network

class Late:
    name, default_network, client = "late", Network.NONE, None
    def invocation(self, task, place):
        raise KeyError("late")
    def reader(self):
        return None

make = Late
"""


def installed(folder: Path, code: str) -> Path:
    """Leave a package with one adapter in *folder*, as an installer does."""
    about = folder / "packages" / "shoal_odd-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shoal-odd\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[shoal.adapters]\nodd one = shoal_odd:make\nclaude = shoal_odd:make\n")
    (about.parent / "shoal_odd.py").write_text(f"{code}\n")
    return about.parent


def asked(repo: Path, packages: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in an interpreter of its own, which looks for packages anew."""
    env = environment(PYTHONPATH=str(packages))
    return subprocess.run([SHOAL, *words], cwd=repo, env=env, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.deep
@pytest.mark.parametrize("how", BROKEN)
def test_an_adapter_that_is_broken_is_blamed_on_its_package(repo: Path, tmp_path: Path, how: str) -> None:
    code, why = BROKEN[how]
    packages = installed(tmp_path, code)
    (repo / "shoal.yaml").write_text(MINE)

    said = asked(repo, packages, "run")

    assert said.returncode == 5, said.stderr
    (line,) = said.stderr.splitlines()
    assert "the adapter 'odd one' of the package shoal-odd is not available on this host" in line
    assert why in line
    assert not (repo / ".shoal").exists()


def test_one_that_fails_when_it_is_asked_is_blamed_too(repo: Path, tmp_path: Path) -> None:
    packages = installed(tmp_path, LATE)
    (repo / "shoal.yaml").write_text(MINE)

    said = asked(repo, packages, "run")

    assert said.returncode == 5, said.stderr
    assert "of the package shoal-odd is not available on this host: KeyError: 'late'" in said.stderr


@pytest.mark.deep
def test_who_does_not_use_it_does_not_notice(repo: Path, tmp_path: Path) -> None:
    packages = installed(tmp_path, "import nothing_like_this")
    (repo / "shoal.yaml").write_text(OTHER)

    ran = asked(repo, packages, "run")
    listed = asked(repo, packages, "agents", "--quick", "--json")

    assert ran.returncode == 0, ran.stderr
    assert listed.returncode == 0, listed.stderr
    agents = {one["agent"]: one for one in json.loads(listed.stdout)["agents"]}
    assert not agents["odd one"]["ready"]
    assert "shoal-odd" in agents["odd one"]["trouble"]
    assert agents["claude"]["trouble"] is None, "ours is not replaced"


def client(folder: Path, *lines: str) -> str:
    """Make a `claude` that says *lines*."""
    folder.mkdir()
    (folder / "said").write_text("".join(f"{line}\n" for line in lines))
    (folder / "claude").write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo 1000.0.0 && exit\ncat {folder}/said\n')
    (folder / "claude").chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_a_forged_wait_ends_no_run(shoal: Shoal, tmp_path: Path) -> None:
    path = client(tmp_path / "bin", f'{{"type":"system","subtype":"api_retry","retry_delay_ms":{"9" * 400}}}')

    said = shoal("run", "--task", "x", "--agent", "claude", PATH=path, ANTHROPIC_API_KEY="a-secret-key")

    assert said.code == 1, said.err
    assert "it ended before it was done" in said.out


def test_a_forged_session_is_bounded_and_without_secrets(shoal: Shoal, tmp_path: Path) -> None:
    name = json.dumps(f"\ud800 a-secret-key {'x' * 100_000}")
    path = client(
        tmp_path / "bin",
        f'{{"type":"system","subtype":"init","session_id":{name}}}',
        '{"type":"result","is_error":false,"subtype":"success","result":"x"}',
    )

    said = shoal("run", "--task", "x", "--agent", "claude", "--json", PATH=path, ANTHROPIC_API_KEY="a-secret-key")

    assert said.code == 0, said.err
    (worker,) = json.loads(said.out)["steps"][0]["worker_results"]
    assert len(worker["client_session"]) <= 200
    assert "a-secret-key" not in worker["client_session"]


def test_a_client_whose_interpreter_is_gone_is_not_blamed_on_the_wall(shoal: Shoal, tmp_path: Path) -> None:
    path = client(tmp_path / "bin")
    (tmp_path / "bin" / "claude").write_text(f"#!{tmp_path}/gone/node\n")

    said = shoal("run", "--task", "x", "--agent", "claude", PATH=path, ANTHROPIC_API_KEY="a-secret-key")

    assert f"needs {tmp_path}/gone/node, which is missing" in f"{said.out}{said.err}"
    assert "sandbox is not available" not in f"{said.out}{said.err}"
