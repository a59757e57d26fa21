"""The contract of adapters, held by this one: `pytest` in this folder runs it."""

from shoal_tale import Tale

from shoal.testing.adapter import AdapterContract


class TestTale(AdapterContract):
    """Every test of the contract, inherited."""

    adapter = Tale()
    ending = ('{"done": true, "tokens": [12, 3]}',)
