"""The key `history`: how long ended runs are remembered, and how many of them."""

from pydantic import Field

from shoal.model.plan import HistoryLimit
from shoal.pipeline.fields import Shape

DAY = 24 * 3600.0


class HistoryShape(Shape):
    """What to keep of ended runs: beyond it, their logs, patches, artifacts and events are removed after a run."""

    days: float | None = Field(default=None, gt=0, le=36500)
    """Remove what ended so many days ago."""
    runs: int | None = Field(default=None, ge=1)
    """Keep the history of the latest N runs."""

    @property
    def limit(self) -> HistoryLimit:
        """Give the limit that the keys describe."""
        return HistoryLimit(age_seconds=None if self.days is None else self.days * DAY, runs=self.runs)
