"""Tools for testing pipelines and adapters without a provider; no other package imports this one.

`replay.py` replays recorded runs, `adapter.py` is the contract of an adapter as a class of tests, and `model/` is a
scripted model server on loopback.
"""
