"""The script that installs pinned clients: quick when they are there, and safe when two run at once."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.clients.real import ROOT, client_path

SCRIPT = ROOT / "scripts" / "clients"
NPM = """#!/bin/sh
echo "$@" >> "$LOG"
while [ "$1" != --prefix ]; do shift; done
mkdir -p "$2/node_modules/.bin"
printf '#!/bin/sh\\n' > "$2/node_modules/.bin/claude"
chmod +x "$2/node_modules/.bin/claude"
"""


def started(*names: str, **env: str) -> subprocess.Popen[str]:
    words = [sys.executable, str(SCRIPT), *names]
    return subprocess.Popen(
        words, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )


def test_what_is_installed_is_left_as_it_is_in_silence() -> None:
    client_path("claude", "codex", "goose")

    with started("claude", "codex", "goose", PATH="/nonexistent") as again:
        assert again.communicate() == ("", "")
    assert again.returncode == 0


def test_two_at_once_install_once_and_what_a_killed_one_left_is_made_anew(tmp_path: Path) -> None:
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(NPM)
    npm.chmod(0o755)
    version = pins()["claude"]
    half = tmp_path / "cache" / f"claude@{version}" / "node_modules"
    half.mkdir(parents=True)
    log = tmp_path / "log"
    env = {"SHOAL_CLIENTS": str(tmp_path / "cache"), "LOG": str(log), "PATH": f"{npm.parent}:/usr/bin:/bin"}

    both = [started("claude", **env), started("claude", **env)]

    for one in both:
        assert one.communicate()[0] == ""
        assert one.returncode == 0
    assert len(log.read_text().splitlines()) == 1
    assert f"claude-code@{version}" in log.read_text()
    assert os.access(half.parent / "bin" / "claude", os.X_OK)


def test_what_will_be_downloaded_is_said_before_it_is(tmp_path: Path) -> None:
    """Without an npm that works nothing is downloaded, and it was said all the same."""
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\nexit 1\n")
    npm.chmod(0o755)

    with started("claude", "goose", SHOAL_CLIENTS=str(tmp_path / "cache"), PATH=f"{tmp_path}:/usr/bin:/bin") as failing:
        first = failing.communicate()[1].splitlines()[0]

    assert failing.returncode == 1
    assert f"claude-code {pins()['claude']}" in first
    assert f" {pins()['goose']} from npm to {tmp_path}/cache" in first


def test_a_name_that_nobody_knows_is_told_with_those_that_are_known() -> None:
    with started("clod") as wrong:
        said = wrong.communicate()[1]

    assert wrong.returncode == 1
    assert "clod" in said
    assert "claude" in said


def test_the_page_names_the_versions_that_are_tested() -> None:
    row = re.search(r"^\| tested \|(.*)\|$", (ROOT / "docs" / "agents.md").read_text(), re.MULTILINE)

    assert row is not None
    versions = [cell.strip() for cell in row[1].split("|")]
    assert versions == [pins()[name] for name in ("claude", "codex", "goose")]


def pins() -> dict[str, str]:
    """Read the versions out of the script."""
    found = re.findall(r'"(\w+)": Pin\(\s*f?"[^"]+",\s*"([^"]+)"', SCRIPT.read_text())
    return dict(found)
