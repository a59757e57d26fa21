"""How often unreachable cycles are looked for during a run: seldom, as most of what it makes lives as long as it."""

import contextlib
import gc
from collections.abc import Iterator

SELDOM = 50_000  # objects more than before; some megabytes


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Look for cycles seldom in here: by Python's own measure, a tenth of the time of many short sessions goes there.

    For a program that is ours alone; who runs agents inside of another program decides that for itself.
    """
    before = gc.get_threshold()
    gc.freeze()  # what was imported and planned stays anyhow
    gc.set_threshold(SELDOM, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
