"""Closed terminals in a real tmux: what runs goes on, and another terminal takes it in hand."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import SHOAL
from tests.clients.conftest import MakeScene
from tests.clients.real import CLAUDE, Scene, workers
from tests.clients.test_control import SAID, only_workspace, prepare
from tests.conftest import git

pytestmark = pytest.mark.clients
SECONDS = 60.0


@dataclass(frozen=True)
class Tmux:
    """A tmux server of the test's own."""

    socket: Path
    scene: Scene

    def call(self, *words: str) -> str:
        environ = {**self.scene.environ(), "TERM": "xterm-256color"}
        done = subprocess.run(
            ["tmux", "-f", "/dev/null", "-S", str(self.socket), *words],
            cwd=self.scene.repo, env=environ, capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def open(self, name: str) -> None:
        """Open a terminal with a shell in it."""
        self.call("new-session", "-d", "-s", name, "-x", "120", "-y", "40", "sh")

    def type(self, name: str, line: str) -> None:
        """Type *line*, in which `shoal` is our command."""
        self.call("send-keys", "-t", name, line.replace("shoal ", f"{SHOAL} ", 1), "Enter")

    def close(self, name: str) -> None:
        """Close the terminal: what runs in it gets a hang-up."""
        self.call("kill-session", "-t", name)

    def screen(self, name: str) -> str:
        return self.call("capture-pane", "-p", "-J", "-t", name)

    def wait_for(self, name: str, holds: Callable[[str], bool]) -> str:
        """Wait until *holds* for what a terminal shows."""
        end = time.monotonic() + SECONDS
        while not holds(screen := self.screen(name)):
            assert time.monotonic() < end, screen
            time.sleep(0.1)
        return screen


@pytest.fixture
def tmux(scene: MakeScene, tmp_path: Path) -> Iterator[Tmux]:
    server = Tmux(tmp_path / "tmux", scene(CLAUDE))
    server.open("keeper")  # a server ends with its last session
    try:
        yield server
    finally:
        server.call("kill-server")


def test_a_run_outlives_its_terminal_and_is_controlled_from_others(tmux: Tmux) -> None:
    here = tmux.scene
    prepare(here)
    tmux.open("first")
    tmux.type("first", "shoal run shoal.yaml --detach-on-hangup")
    tmux.wait_for("first", lambda screen: all(f"s{number}-" in screen for number in range(4)))
    here.model.wait(1, timeout=60)
    tmux.close("first")

    tmux.open("second")
    tmux.type("second", "shoal attach")
    tmux.wait_for("second", lambda screen: all(f"s{number}-" in screen for number in range(4)) and "w-" in screen)
    tmux.open("third")
    tmux.type("third", f"shoal send w '{SAID}'; echo sent $?")
    tmux.wait_for("third", lambda screen: "sent 0" in screen)
    tmux.type("third", "shoal stop s2; echo stopped $?")
    tmux.wait_for("third", lambda screen: "stopped 0" in screen)
    tmux.wait_for("second", lambda screen: "cancelled" in screen or "stopp" in screen)
    tmux.type("third", f"shoal wait --json > {here.repo.parent}/report; echo waited $?")
    tmux.close("second")
    (only_workspace(here, "w") / "go").touch()
    (here.repo / "go").touch()
    tmux.wait_for("third", lambda screen: "waited 1" in screen)

    found = workers(json.loads((here.repo.parent / "report").read_text()))
    statuses = {step: worker["status"] for step, worker in found.items()}
    assert statuses == {**dict.fromkeys(("w", "s0", "s1", "s3"), "succeeded"), "s2": "cancelled"}
    assert git(here.repo, "show", f"{found['w']['branch']}:tea.txt") == "tea"
    talks = [request.conversation.messages for request in here.model.requests]
    assert any("file=tea.txt" in message.text for message in talks[-1]), "the model saw the message"
    assert git(here.repo, "show", f"{found['s2']['branch']}:part.txt") == "part"
    assert here.left() == []


def test_without_that_option_a_closed_terminal_stops_the_run_and_keeps_its_work(tmux: Tmux) -> None:
    here = tmux.scene
    prepare(here)
    tmux.open("first")
    tmux.type("first", "shoal run shoal.yaml")
    tmux.wait_for("first", lambda screen: all(f"s{number}-" in screen for number in range(4)))
    here.model.wait(1, timeout=60)
    only_workspace(here, "s3")
    tmux.close("first")

    tmux.open("second")
    tmux.type("second", f"shoal wait --json > {here.repo.parent}/report; echo waited $?")
    tmux.wait_for("second", lambda screen: "waited 130" in screen)
    found = workers(json.loads((here.repo.parent / "report").read_text()))
    assert {worker["status"] for worker in found.values()} == {"cancelled"}
    assert git(here.repo, "show", f"{found['s3']['branch']}:part.txt") == "part"
    assert here.left() == []
    (here.repo / "go").touch()
    (here.repo / "waiter").touch()
    tmux.type("second", "shoal send w x; echo refused $?")
    tmux.wait_for("second", lambda screen: "refused 2" in screen)
