"""Test the adapter against the adapter contract: run `pytest` in this directory."""

from shoal_tale import Tale

from shoal.testing.adapter import AdapterContract


class TestTale(AdapterContract):
    """Inherits every test of the contract."""

    adapter = Tale()
    ending = ('{"done": true, "tokens": [12, 3]}',)
