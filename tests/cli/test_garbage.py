"""The garbage collector runs rarely during a run, and normally afterwards."""

import gc

import pytest

from shoal.cli.follow import seldom_collected
from shoal.cli.main import SELDOM


def test_cycles_are_looked_for_seldom_in_a_run_only() -> None:
    before = gc.get_threshold()
    with seldom_collected():
        assert gc.get_threshold() == (SELDOM, *before[1:])
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_a_run_that_fails_leaves_it_as_it_was_too() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="broken"), seldom_collected():
        raise ValueError("broken")
    assert gc.get_threshold() == before
