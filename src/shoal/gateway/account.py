"""The state of an account's rate limit, shared by all sessions and processes; the caller passes the time."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Self

FIRST_LIMIT = 128.0
"""How many requests may be under way before the provider ever said that they are too many."""
HIGHEST_LIMIT = 1024.0
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 60.0
CALM = 10.0
LONG_CALM = 60.0
PROBE_SECONDS = 10.0
"""How long the others wait for what becomes of the request that tries first."""
LONGEST_RETRY_AFTER = 24 * 3600.0
WAITS_FOR = 2.0
"""Who has not asked again for this long does not wait any more: its process hangs."""
MOST_ENTRIES = 1000

Json = Mapping[str, Any]


@dataclass(slots=True)
class RunShare:
    """One run's share of an account, in one process."""

    under_way: int = 0
    served: int = 0
    """When it was last given a slot, as a count of all slots that were given."""
    asked_at: float = -math.inf

    def waits(self, now: float) -> bool:
        """Return whether the run waits for a slot."""
        return now - self.asked_at < WAITS_FOR


@dataclass(slots=True)
class AccountState:
    """How many requests may be under way, and which runs have them.

    The limit halves when the provider refuses. Each more of the requests that were under way together and are refused,
    too, takes a tenth of it. After a refusal, a single request tries before the others follow. Answers let the limit
    grow: by a quarter for each limit's worth of them, by one when the last refusal was a while ago, and by one for each
    answer when it was long ago.
    """

    limit: float = FIRST_LIMIT
    open_at: float = -math.inf
    """When the provider may be asked again."""
    cut_at: float = -math.inf
    refusals: int = 0
    """In a row, without an answer in between."""
    is_probing: bool = False
    probe_at: float = -math.inf
    """When the request began that tries first, while it is not known what becomes of it."""
    given: int = 0
    shares: dict[str, dict[str, RunShare]] = field(default_factory=dict)
    """By process, then by run."""

    @property
    def under_way(self) -> int:
        """The number of requests under way."""
        return sum(share.under_way for runs in self.shares.values() for share in runs.values())

    def ask(self, now: float, process: str, run: str) -> float:
        """Take a slot and return 0, or return how long to wait before asking again."""
        share = self.shares.setdefault(process, {}).setdefault(run, RunShare())
        share.asked_at = now
        if now < self.open_at:
            return self.open_at - now
        is_full = self.under_way >= max(1, int(self.limit)) and self.under_way > 0
        if self.is_probing:  # what is under way from before says nothing about now
            is_full = now - self.probe_at < PROBE_SECONDS
        if is_full or not self._is_next(now, run):
            return WAITS_FOR / 8
        if self.is_probing:
            self.probe_at = now
        self.given += 1
        share.under_way += 1
        share.served = self.given
        share.asked_at = -math.inf
        return 0.0

    def _is_next(self, now: float, run: str) -> bool:
        """Return whether no other waiting run has fewer requests under way or was served longer ago."""
        totals: dict[str, tuple[int, int]] = {}
        waiting = {run}
        for runs in self.shares.values():
            for name, share in runs.items():
                under_way, served = totals.get(name, (0, 0))
                totals[name] = under_way + share.under_way, max(served, share.served)
                if share.waits(now):
                    waiting.add(name)
        return run == min(waiting, key=lambda name: (*totals[name], name))

    def stop_asking(self, process: str, run: str) -> None:
        """Forget that a run waits."""
        if share := self.shares.get(process, {}).get(run):
            share.asked_at = -math.inf

    def end(self, process: str, run: str) -> None:
        """Give a slot back."""
        if share := self.shares.get(process, {}).get(run):
            share.under_way = max(0, share.under_way - 1)

    def note_answer(self, now: float, began: float) -> None:
        """Count a request that the provider accepted; *began* is when it was sent."""
        if began >= self.cut_at:
            calm = now - self.cut_at
            growth = 1.0 if calm > LONG_CALM else (1.0 if calm > CALM else 0.25) / self.limit
            self.limit = min(HIGHEST_LIMIT, self.limit + growth)
            self.is_probing, self.refusals = False, 0

    def note_refusal(self, now: float, began: float, retry_after: float | None) -> None:
        """Count a request that was refused by the rate limit; *began* is when it was sent."""
        if began >= self.cut_at:
            self.limit = max(1.0, min(self.limit, float(max(1, self.under_way))) / 2)
            self.cut_at = now
            self.refusals += 1
        else:
            self.limit = max(1.0, self.limit * 0.9)
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self.refusals - 1, 10))
        self.open_at = max(self.open_at, now + (pause if retry_after is None else retry_after))
        self.is_probing, self.probe_at = True, -math.inf

    def keep_only(self, processes: set[str]) -> None:
        """Free all slots of processes that have ended, and forget runs that have no slot and wait for none."""
        self.shares = {process: runs for process, runs in self.shares.items() if process in processes}
        for runs in self.shares.values():
            idle = [name for name, share in runs.items() if not share.under_way and share.asked_at == -math.inf]
            for name in idle[: max(0, len(runs) - MOST_ENTRIES)]:
                del runs[name]

    def document(self) -> Json:
        """Write it as JSON."""
        shares = {
            process: {run: [share.under_way, share.served, _finite(share.asked_at)] for run, share in runs.items()}
            for process, runs in self.shares.items()
        }
        known = {"limit": self.limit, "refusals": self.refusals, "is_probing": self.is_probing, "given": self.given}
        return {
            **known,
            "open_at": _finite(self.open_at),
            "cut_at": _finite(self.cut_at),
            "probe_at": _finite(self.probe_at),
            "shares": shares,
        }

    @classmethod
    def of(cls, document: Json) -> Self:
        """Read it from JSON; raise `ValueError` and its like for anything else."""
        shares = {
            str(process): {
                str(run): RunShare(int(under_way), int(served), _past(asked_at))
                for run, (under_way, served, asked_at) in runs.items()
            }
            for process, runs in document["shares"].items()
        }
        return cls(
            limit=min(HIGHEST_LIMIT, max(1.0, float(document["limit"]))),
            open_at=_past(document["open_at"]),
            cut_at=_past(document["cut_at"]),
            refusals=int(document["refusals"]),
            is_probing=bool(document["is_probing"]),
            probe_at=_past(document["probe_at"]),
            given=int(document["given"]),
            shares=shares,
        )


def read_retry_after(headers: Mapping[str, str], body: Json, now: datetime) -> float | None:
    """Return how many seconds a refusal says to wait, in any provider's format; `None` if it is invalid."""
    found = _seconds(headers.get("retry-after-ms"), 1000) or _seconds(headers.get("retry-after"), 1)
    if found is None and "retry-after" in headers:
        try:
            found = max(0.0, (parsedate_to_datetime(headers["retry-after"]) - now).total_seconds())
        except (ValueError, TypeError):
            found = None
    return _retry_info(body) if found is None else min(found, LONGEST_RETRY_AFTER)


def utc_now() -> datetime:
    """Return the time, to compare with a header's."""
    return datetime.now(UTC)


def is_for_good(headers: Mapping[str, str], body: Json) -> bool:
    """Return whether waiting is pointless: the account has no credit, or the provider says so."""
    error = body.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return headers.get("x-should-retry") == "false" or code in ("insufficient_quota", "billing_hard_limit_reached")


def _retry_info(body: Json) -> float | None:
    error = body.get("error")
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else []:
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and delay.endswith("s"):
            return _seconds(delay[:-1], 1)
    return None


def _seconds(text: str | None, per_second: float) -> float | None:
    try:
        found = float(text or "") / per_second
    except ValueError:
        return None
    return min(found, LONGEST_RETRY_AFTER) if found >= 0 else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _past(value: object) -> float:
    return -math.inf if value is None else float(value)  # type: ignore[arg-type]  # what is no number raises
