"""A wrong limit is reported at its key or value, and all mistakes of a mapping at once."""

from pathlib import Path

import pytest

from shoal.pipeline.load import parse
from shoal.pipeline.problems import BadDocument
from tests.cli.conftest import shoal_in

AGENT = "agents: {x: {adapter: command, command: make}}\n"
STEP = f"{AGENT}steps:\n  - name: a\n    agent: x\n    prompt: go\n    limits: "


def wrong(text: str) -> list[str]:
    with pytest.raises(BadDocument) as caught:
        parse(text, "f.yaml")
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("limit", "column", "what"),
    [
        ("memory_mb: 0", 25, "limit `memory_mb` must be a number from 16 to"),
        ("memory_mb: -1", 25, "limit `memory_mb` must be a number from 16 to"),
        ("memory_mb: 1e300", 25, "limit `memory_mb` must be a number from 16 to"),
        ("memory_mb: .nan", 25, "limit `memory_mb` must be a number from 16 to"),
        ("memory_mb: '512'", 25, "limit `memory_mb` must be a number from 16 to"),
        ("memory_mb: [1]", 25, "limit `memory_mb` must be a number from 16 to"),
        ("cpu_percent: 0", 27, "limit `cpu_percent` must be a number from 1 to"),
        ("cpu_percent: -50", 27, "limit `cpu_percent` must be a number from 1 to"),
        ("time_seconds: 0", 28, "limit `time_seconds` must be a number from 0.001 to"),
        ("time_seconds: 10m", 28, "limit `time_seconds` must be a number from 0.001 to"),
        ("disk_mb: 0", 23, "limit `disk_mb` must be a number from 1 to"),
        ("pids: 1", 20, "limit `pids` must be a whole number from 2 to"),
        ("pids: 2.5", 20, "limit `pids` must be a whole number from 2 to"),
        ("pids: true", 20, "limit `pids` must be a whole number from 2 to"),
        ("pids: 99999999999999999999", 20, "limit `pids` must be a whole number from 2 to"),
        ("max_memory: 0", 26, "limit `max_memory` must be a number from 16 to"),
        ("memroy_mb: 64", 14, "limit `memroy_mb` is not known; did you mean `memory_mb`?"),
        ("memory: 64", 14, "limit `memory` is not known"),
        ("'': 64", 14, "limit `` is not known"),
    ],
)
def test_a_wrong_limit_is_told_where_it_stands(limit: str, column: int, what: str) -> None:
    """A value that is wrong at the value, a key that is wrong at the key."""
    (line,) = wrong(f"{STEP}{{{limit}}}")

    assert line.startswith(f"f.yaml:6:{column}: {what}"), line


def test_everything_wrong_with_a_mapping_is_told_at_once() -> None:
    mapping = "\n      memory_mb: 0\n      memroy_mb: 64\n      pids: 9\n      pidz: 9\n      max_disk_usage: -2\n"

    lines = wrong(f"{STEP}{mapping}")

    assert [line.split(" must")[0].split(" is")[0] for line in lines] == [
        "f.yaml:7:18: limit `memory_mb`",
        "f.yaml:8:7: limit `memroy_mb`",
        "f.yaml:10:7: limit `pidz`",
        "f.yaml:11:23: limit `max_disk_usage`",
    ]


def test_one_limit_by_two_names_is_told_at_the_second_beside_what_else_is_wrong() -> None:
    lines = wrong(f"{STEP}{{pids: 0, memory_mb: 64, max_memory: 128}}")

    assert [line.split(" limit ")[0] for line in lines] == ["f.yaml:6:20:", "f.yaml:6:38:"]
    assert lines[1].endswith("`max_memory` is given twice: it is the same as `memory_mb`")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"runtime: {{resource_limits: {{pids: 0}}}}\n{AGENT}", "1:35"),
        (f"runtime: {{fleet_limits: {{pids: 0}}}}\n{AGENT}", "1:32"),
        (f"personas: {{p: {{agent: x, limits: {{pids: 0}}}}}}\n{AGENT}", "1:41"),
        ("agents:\n  x: {adapter: command, command: a, limits: {pids: 0}}\n", "2:52"),
    ],
)
def test_the_place_is_right_wherever_limits_may_be_said(text: str, place: str) -> None:
    (line,) = wrong(f"{text}steps: [{{name: a, agent: x, prompt: go}}]\n")

    assert line.startswith(f"f.yaml:{place}: limit `pids` must be"), line


@pytest.mark.parametrize("value", ["3", "[]", "text"])
def test_limits_that_are_no_mapping_are_told_as_a_whole(value: str) -> None:
    (line,) = wrong(f"{STEP}{value}")

    assert line.startswith("f.yaml:6:13: limits must be a mapping such as {memory_mb: 1024}, not")


def test_the_command_exits_with_2_and_prints_every_place(repo: Path) -> None:
    (repo / "shoal.yaml").write_text(f"{STEP}{{memory_mb: -5, time_secs: 3}}\n")

    said = shoal_in(repo)("run", "shoal.yaml")

    assert said.code == 2
    places = [word for word in said.err.split() if word.startswith(("shoal.yaml:", str(repo)))]
    assert [place.rpartition("yaml")[2] for place in places] == [":6:25:", ":6:29:"]
    assert not (repo / ".shoal").exists()
