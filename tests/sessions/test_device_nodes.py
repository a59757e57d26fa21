"""The device nodes in root's sandboxes: nobody's, complete, and recreated if somebody changed them."""

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.sessions import host_probe as device_nodes
from tests.acting import worked

ATTACK = """
for node in null zero full random urandom tty; do
  chmod 0667 /dev/$node && echo "mode of $node"
  touch -d '2001-02-03 04:05:06' /dev/$node && echo "times of $node"
  [ $node = tty ] || head -c 0 < /dev/$node || echo "$node is gone"
done 2>/dev/null
for file in kpageflags kpagecount slabinfo; do head -c 8 /proc/$file 2>/dev/null | od -An -c; done
echo written > /dev/null && echo done
"""


async def test_an_agent_cannot_change_the_hosts_device_nodes(repo: Path) -> None:
    before = [(node, node.stat().st_mode, node.stat().st_mtime_ns) for node in map(Path("/dev").joinpath, NAMES)]

    result = await worked(repo, ATTACK)

    assert result.output.split() == ["done"]
    assert [(node, node.stat().st_mode, node.stat().st_mtime_ns) for node, *_ in before] == before


NAMES = ("full", "random", "urandom")  # nobody writes to these meanwhile, which would change their times

if os.geteuid() == 0:

    @pytest.fixture
    def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        place = Path(f"/dev/shoal-test-{secrets.token_hex(4)}")
        monkeypatch.setattr(device_nodes, "FOLDER", place)
        yield place
        shutil.rmtree(place, ignore_errors=True)

    def test_nodes_that_somebody_changed_are_made_again(folder: Path) -> None:
        first = device_nodes.device_nodes()
        (folder / "null").chmod(0o600)
        again = device_nodes.device_nodes()

        assert first == again == tuple(folder / name for name in device_nodes.NAMES)
        assert (folder / "null").stat().st_mode == device_nodes.MODE
        assert sorted(path.name for path in folder.iterdir()) == sorted(device_nodes.NAMES)

else:

    def test_who_does_not_own_the_hosts_nodes_needs_none() -> None:
        assert device_nodes.device_nodes() == ()
