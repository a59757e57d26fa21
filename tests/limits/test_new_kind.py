"""A new kind of enforcement is one module and one line in the table."""

import importlib
import sys
from pathlib import Path

import pytest

from shoal.limits import choose
from shoal.limits.guard import open_guard
from shoal.model.limits import ResourceLimits
from tests.limits.limit_runs import CROWD, running, shell, until

TOY = """
from shoal.limits.polling import Polling


class Toy(Polling):
    name = "toy"


async def toy(host, fleet):
    return Toy()
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy_enforcer.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("toy_enforcer")
    monkeypatch.setattr(choose, "KINDS", {"toy": module.toy, **choose.KINDS})
    monkeypatch.delitem(sys.modules, "toy_enforcer")


@pytest.mark.usefixtures("toy")
async def test_a_toy_enforcer_is_chosen_and_holds_a_limit() -> None:
    enforcer = await choose.choose()

    assert enforcer.name == (await choose.choose("toy")).name == "toy"
    enforcer.sweep()
    async with open_guard(enforcer) as guard:
        assert not guard.has_groups
        with enforcer.hold_shared(), enforcer.group("crowd", ResourceLimits(pids=20)) as group:
            async with running(group, shell(CROWD)):
                await until(group.breach)
            assert group.breach() == "pids"
