"""Claude Code, Codex and goose on the gateway: a turn with tools, without a network and without the key."""

from urllib.parse import quote

import pytest

from tests.clients.conftest import MakeScene
from tests.clients.real import EVERY, Real, workers
from tests.conftest import git

each = pytest.mark.parametrize("real", EVERY, ids=[one.name for one in EVERY])

# The words of the key are apart, so that the look does not find itself.
LOOK = """(env; cat /proc/*/environ /proc/*/cmdline; cat /proc/net/dev; grep -rsl "dummy-""key" "$HOME" /tmp . ) > seen 2>&1
python3 -c "import socket; socket.create_connection((chr(49) + '.1.1.1', 443), 3)" || echo no way out >> seen"""


@each
def test_a_turn_with_tools_sees_neither_the_key_nor_a_network(scene: MakeScene, real: Real) -> None:
    here = scene(real)
    here.write([{"name": "w", "prompt": f"[[s:shell cmd={quote(LOOK, safe='')}]]"}])

    report = here.run()

    worker = workers(report)["w"]
    assert worker["status"] == "succeeded", worker
    seen = git(here.repo, "show", f"{worker['branch']}:seen")
    assert "no way out" in seen
    assert "dummy-key" not in seen
    assert "SHOAL_GATEWAY" in seen or "127.0.0.1:9917" in seen
    assert {line.split(":")[0].strip() for line in seen.splitlines() if ": " in line and line.strip()[:2] == "lo"} == {
        "lo"
    }
    state = [path for path in (here.repo / ".shoal").rglob("*") if path.is_file()]
    assert not [path for path in state if b"dummy-key-of" in path.read_bytes()]
    assert "dummy-key-of" not in here.logs()
    assert any("network gateway" in note for note in report["notes"]), report["notes"]
    assert here.left() == []
