"""A search for the first link of a chain that is not good: pure, so that what it may ask later can be known now."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is known of a chain: so many links as *good* from its start are good, and so many as *bad* are not."""

    length: int
    batch: int
    good: int = 0
    bad: int | None = None

    @property
    def asks(self) -> int | None:
        """Say of how many links from the start the verdict is needed next; `None` when the search is over."""
        if self.bad is None:
            return None if self.good == self.length else min(self.good + self.batch, self.length)
        return None if self.bad - self.good == 1 else (self.good + self.bad) // 2

    def told(self, *, ok: bool) -> "Search":
        """Go on with the answer to what was asked."""
        asked = self.good if self.asks is None else self.asks
        return replace(self, good=asked) if ok else replace(self, bad=asked)

    def ahead(self, known: Callable[[int], bool | None]) -> Iterator[int]:
        """Go through what is asked next, and after that whatever the answer, the soonest first."""
        line = deque([self])
        while line:
            one = line.popleft()
            if (asked := one.asks) is None:
                continue
            if (answer := known(asked)) is not None:
                line.append(one.told(ok=answer))
                continue
            yield asked
            line += (one.told(ok=False), one.told(ok=True))
