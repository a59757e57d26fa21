"""All state on disk: the ledger of events, a log for each session, what they add up to, requests and locks.

Start reading at `kind.py`: a `Store` keeps the events, and everything else is built on it. `ledger.py` writes through
one thread, `reader.py` reads, `fold.py` adds events up to the state of runs, `lookup.py` finds a run by its name.

To add a kind of store, implement the protocols of `kind.py` in a module of its own, let `reader.store_at` choose it,
and add it to the list in `tests/store/test_store_contract.py`.
"""
