"""What was merged before, as it was recorded: intents that no record followed count when their ref has moved."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from shoal.model.events import Recorded
from shoal.model.merge import DeliveryIntended, DeliveryRecorded, MergeIntended, MergeRecorded, MergeResult, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeHistory:
    """Where Shoal left the integration branch of a run, and what is in it."""

    tip: str = ""
    """Empty where there is no such branch."""
    start: str = ""
    strategy: Strategy = Strategy.AUTO
    results: tuple[MergeResult, ...] = ()
    out: tuple[str, ...] = ()
    unrecorded: str | None = None
    """Where it was moved to without a record of that: whoever moved it was killed."""
    deliveries: Mapping[str, DeliveryRecorded] = field(default_factory=dict)
    """The last delivery into each branch."""
    pending: Mapping[str, DeliveryIntended] = field(default_factory=dict)
    """Deliveries into each branch that were begun and not recorded."""

    def without(self, gone: Container[str]) -> "MergeHistory":
        """Forget commits that are *gone*: what was merged stays merged, but cannot be merged again."""
        results = (replace(one, source=None) if one.source in gone else one for one in self.results)
        return replace(self, results=tuple(results))


def past(events: Iterable[Recorded], at: str) -> MergeHistory:
    """Add up *events* of one run; *at* is where the integration branch really is."""
    found = MergeHistory()
    intent: MergeIntended | None = None
    for recorded in events:
        match recorded.event:
            case MergeIntended() as event:
                intent = event
                if event.new == at:
                    found = replace(_apply_intent(found, event), unrecorded=at)
            case MergeRecorded(new=new):
                if intent is not None and intent.new == new:
                    found = replace(_apply_intent(found, intent), unrecorded=None)
            case DeliveryIntended(into=into) as event:
                found = replace(found, pending={**found.pending, into: event})
            case DeliveryRecorded(into=into) as event:
                pending = {name: one for name, one in found.pending.items() if name != into}
                found = replace(found, pending=pending, deliveries={**found.deliveries, into: event})
            case _:
                continue
    return found


def _apply_intent(found: MergeHistory, intent: MergeIntended) -> MergeHistory:
    return replace(
        found,
        tip=intent.new,
        start=intent.start,
        strategy=intent.strategy,
        results=intent.results,
        out=intent.out,
    )
