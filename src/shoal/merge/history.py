"""What was merged before, from the recorded events: an intent without a record counts when its ref has moved."""

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
    removed: tuple[str, ...] = ()
    """Sessions that an undo took out."""
    unrecorded: str | None = None
    """Where the branch was moved to without a record: the process that moved it was killed."""
    deliveries: Mapping[str, DeliveryRecorded] = field(default_factory=dict)
    """The last delivery into each branch."""
    pending: Mapping[str, DeliveryIntended] = field(default_factory=dict)
    """Deliveries into each branch that were started and not recorded."""

    def without_missing(self, missing: Container[str]) -> "MergeHistory":
        """Forget the source commits that are *missing*: what is merged stays merged, but cannot be merged anew."""
        results = (replace(result, source=None) if result.source in missing else result for result in self.results)
        return replace(self, results=tuple(results))


def read_history(events: Iterable[Recorded], branch_tip: str) -> MergeHistory:
    """Add up *events* of one run; *branch_tip* is where the integration branch really is."""
    history = MergeHistory()
    intent: MergeIntended | None = None
    for recorded in events:
        match recorded.event:
            case MergeIntended() as event:
                intent = event
                if event.new == branch_tip:
                    history = replace(_apply_intent(history, event), unrecorded=branch_tip)
            case MergeRecorded(new=new):
                if intent is not None and intent.new == new:
                    history = replace(_apply_intent(history, intent), unrecorded=None)
            case DeliveryIntended(into=into) as event:
                history = replace(history, pending={**history.pending, into: event})
            case DeliveryRecorded(into=into) as event:
                pending = {name: intended for name, intended in history.pending.items() if name != into}
                history = replace(history, pending=pending, deliveries={**history.deliveries, into: event})
            case _:
                continue
    return history


def _apply_intent(history: MergeHistory, intent: MergeIntended) -> MergeHistory:
    return replace(
        history,
        tip=intent.new,
        start=intent.start,
        strategy=intent.strategy,
        results=intent.results,
        removed=intent.out,
    )
