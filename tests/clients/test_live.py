"""The live terminal with five real Claude Codes: after some seconds it says what each of them does."""

import signal
from collections.abc import Mapping

from tests.cli.conftest import SHOAL
from tests.cli.pty_terminal import open_pty
from tests.clients.conftest import MakeScene
from tests.clients.real import CLAUDE

DOES = {
    "writer": ("[[s:both file=a.txt in=1200 out=200]]", "2 files"),
    "runner": ("[[s:shell cmd=tail%20-f%20README.md in=800 out=70]]", "tail -f README.md"),
    "waiter": ("[[s:err429once retry=60 n=2 in=10 out=2]]", "429"),
    "broken": ("[[s:err401]]", "the model's provider"),
    "talker": ("[[s:slow ms=3000]]", "no output yet"),
}


def test_the_terminal_says_what_each_of_five_claudes_does(scene: MakeScene) -> None:
    here = scene(CLAUDE)
    # On the gateway, all of them would wait for the rate limit that the model tells to `waiter`.
    networks = {name: "host" if name == "waiter" else "gateway" for name in DOES}
    here.write([{"name": name, "prompt": DOES[name][0], "network": network} for name, network in networks.items()])
    environ: Mapping[str, str] = here.environ()
    with open_pty(str(SHOAL), "run", "shoal.yaml", cwd=here.repo, env=environ) as terminal:
        for columns in (80, 60, 160):
            terminal.resize(columns, 40)
            for name, (_, does) in DOES.items():
                terminal.until(lambda name=name, does=does: does in _row(terminal.lines, name))  # type: ignore[misc]
            terminal.until(lambda: "rate limit" in _row(terminal.lines, "waiter"))
            assert max(map(len, terminal.lines)) <= columns
            assert "4.2k" in _row(terminal.lines, "writer")
            assert "$" in _row(terminal.lines, "writer")
            assert "870" in _row(terminal.lines, "runner")
            assert "$" in _row(terminal.lines, "runner")

        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
        assert terminal.is_as_before


def _row(lines: list[str], name: str) -> str:
    """Give the rows of an agent as they stand last on the screen: two of them in a narrow terminal."""
    starts = [place for place, line in enumerate(lines) if line.lstrip(" ›").startswith(f"{name}-")]
    return "\n".join(lines[starts[-1] : starts[-1] + 2]) if starts else ""
