"""The exported contract of adapters: ours pass, another package's passes, and a broken one fails."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shoal.adapters.client import this_host
from shoal.adapters.kind import Invocation, SessionPaths
from shoal.adapters.registry import adapter
from shoal.model.agent import CLIENTS
from shoal.model.resolved_task import ResolvedTask
from shoal.testing.adapter import LONG, AdapterContract
from tests.cli.conftest import SHOAL, environment

EXAMPLE = Path(__file__).parents[2] / "examples" / "adapter"
TESTS = [name for name in vars(AdapterContract) if name.startswith("test_")]


def contract(made: object, ends: Sequence[str] = ()) -> AdapterContract:
    class Held(AdapterContract):
        adapter = made  # type: ignore[assignment]
        ending = ends

    return Held()


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("test", TESTS)
def test_our_own_adapters_keep_the_contract(name: str, test: str) -> None:
    getattr(contract(adapter(name, this_host())), test)()


def test_another_package_keeps_it_by_itself(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={EXAMPLE}", str(EXAMPLE)],
        cwd=EXAMPLE,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert f"{len(TESTS)} passed" in done.stdout


@dataclass
class Careless:
    """Puts a long prompt into an argument, forgets the persona, believes exit codes and counts what it did."""

    name: str = "careless"
    default_network: str = "none"
    client: None = None
    asked: list[str] = field(default_factory=list)

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        self.asked.append(task.prompt)
        Path(place.home.name).exists()
        subprocess.run(["true"], check=True)
        return Invocation(argv=("x", str(len(self.asked)), task.prompt), stdin=b"", home={"../out": b""})

    def reader(self) -> "Gullible":
        return Gullible()


class Gullible:
    is_done = False
    session = None
    usage = {"tokens": float("inf")}  # noqa: RUF012 - it is careless

    def read(self, line: str) -> list[object]:
        return [json.loads(line)]

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        return None if exit_code == 0 else "failed"


@pytest.mark.parametrize(
    "test",
    [
        "test_the_same_task_gives_the_same_command",
        "test_it_touches_nothing",
        "test_a_long_prompt_is_no_argument",
        "test_the_system_prompt_reaches_the_client",
        "test_a_model_is_named_where_one_is_asked_for",
        "test_its_files_stay_in_the_private_home",
        "test_no_line_breaks_the_reader",
        "test_silence_is_no_success",
    ],
)
def test_a_careless_adapter_is_caught(test: str) -> None:
    assert len(LONG) > 128 * 1024
    with pytest.raises((AssertionError, ValueError)):
        getattr(contract(Careless()), test)()


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder of packages with the example in it, as an installer leaves it."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    about = tmp_path / "packages" / "shoal_tale-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
    points = project["entry-points"]["shoal.adapters"]
    (about / "entry_points.txt").write_text("[shoal.adapters]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()))
    (about.parent / "shoal_tale.py").write_text((EXAMPLE / "shoal_tale.py").read_text())
    return about.parent


def shoal(repo: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command in an interpreter of its own, which looks for packages anew."""
    return subprocess.run(
        [SHOAL, *words], cwd=repo, env=environment(**env), capture_output=True, text=True, check=False, timeout=60
    )


DOCUMENT = """\
agents: {mine: {adapter: tale, model: a-model}}
steps: [{name: tell, agent: mine, prompt: "once upon a time"}]
"""


@pytest.mark.deep
def test_an_adapter_of_another_package_is_found_by_its_entry_point(repo: Path, installed: Path) -> None:
    (repo / "shoal.yaml").write_text(DOCUMENT)

    unknown = shoal(repo, "run", "--json")
    said = shoal(repo, "run", "--json", PYTHONPATH=str(installed))
    listed = shoal(repo, "agents", "--json", "--quick", PYTHONPATH=str(installed))

    assert (unknown.returncode, "`adapter` cannot be 'tale'" in unknown.stderr) == (2, True)
    assert said.returncode == 0, said.stderr
    (worker,) = json.loads(said.stdout)["steps"][0]["worker_results"]
    assert (worker["status"], worker["output"]) == ("succeeded", "written by a-model\n")
    assert worker["usage"] == {"input_tokens": 12, "output_tokens": 3}
    assert json.loads(said.stdout)["usage"]["input_tokens"] == 12
    assert "tale" in {one["agent"] for one in json.loads(listed.stdout)["agents"]}
