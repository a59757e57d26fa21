"""Write docs/images/live.svg: the live view of a real run of five scripted agents, as its terminal shows it."""

import contextlib
import io
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "live.svg"
COLUMNS, ROWS = 100, 13
MAX_SECONDS = 30.0
SHOWN = "4/5 ended"
FILE = """\
runtime: {max_concurrent_workers: 5}
agents:
  core: {adapter: scripted, script: [{say: "reading the parser"}, {write: {path: parser.py, content: "def parse():\\n    ...\\n"}}, {sleep: 2}, {say: "running the tests of the parser"}, {sleep: 6}]}
  quick: {adapter: scripted, script: [{write: {path: README.md, content: "# Calc\\n\\nHow to use it.\\n"}}, {sleep: 0.5}]}
  other: {adapter: scripted, script: [{write: {path: README.md, content: "# A calculator\\n"}}, {sleep: 0.7}]}
  broken: {adapter: scripted, script: [{sleep: 0.9}, {fail: "2 tests failed"}]}
  idle: {adapter: scripted, script: [{say: "nothing to change"}]}
steps:
  - {name: fix-parser, agent: core, prompt: "Fix the parser"}
  - {name: write-readme, agent: quick, prompt: "Write the README"}
  - {name: rename, agent: other, prompt: "Rename the project"}
  - {name: add-tests, agent: broken, prompt: "Add tests for division"}
  - {name: review, agent: idle, prompt: "Look for dead code"}
"""


def capture() -> pyte.Screen:
    """Run the agents in a terminal, and return its screen when four of them have ended."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "-q", "-b", "main", folder], check=True)
        subprocess.run(
            ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x", "--allow-empty"],
            check=True,
        )
        (Path(folder) / "shoal.yaml").write_text(FILE)
        ours, theirs = pty.openpty()
        environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        environ.pop("NO_COLOR", None)
        shoal = Path(sys.executable).with_name("shoal")
        with subprocess.Popen(
            [shoal, "run"], cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environ
        ) as run:
            os.close(theirs)
            end = time.monotonic() + MAX_SECONDS
            while time.monotonic() < end and not any(SHOWN in line for line in screen.display):
                if select.select([ours], [], [], 1)[0]:
                    stream.feed(os.read(ours, 65536))
            run.terminate()
            with contextlib.suppress(OSError):  # it has ended
                while os.read(ours, 65536):
                    pass
        os.close(ours)
    return screen


def draw(screen: pyte.Screen) -> str:
    """Draw the screen as an SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for row in range(ROWS):
        line = Text(no_wrap=True)
        for column in range(COLUMNS):
            cell = screen.buffer[row][column]
            color = None if cell.fg == "default" else _color(cell.fg)
            line.append(cell.data, Style(color=color, bold=cell.bold, reverse=cell.reverse))
        line.rstrip()
        console.print(line)
    svg = console.export_svg(title="shoal run", font_aspect_ratio=0.61)
    return re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", svg, flags=re.DOTALL).replace("Fira Code", "monospace")


def _color(name: str) -> str:
    names = {"brown": "yellow"}
    return names.get(name, f"#{name}" if len(name) == 6 and name.isalnum() and not name.isalpha() else name)


if __name__ == "__main__":
    PICTURE.write_text(draw(capture()))
