"""The key `checkpoints`: how often the files of agents that work are kept, as a mapping, a duration, or `false`."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from shoal.model.plan import CHECKPOINT_SECONDS
from shoal.pipeline.fields import Shape, wrong
from shoal.pipeline.keys.duration import LONGEST, BadDuration, seconds


class CheckpointsShape(Shape):
    """How often to keep the files of an agent while it works."""

    minutes: float = Field(default=CHECKPOINT_SECONDS / 60, gt=0, le=LONGEST / 60)
    """Minutes between two checkpoints; one is made only if files changed since the last."""

    @property
    def seconds(self) -> float:
        """Give the time between two checkpoints."""
        return self.minutes * 60


def _as_mapping(value: object) -> object:
    if value is None or isinstance(value, bool):
        return None if value is False else {}
    if not isinstance(value, int | float | str):
        return value
    try:
        return {"minutes": seconds(value) / 60}
    except BadDuration as error:
        raise wrong(str(error)) from None


CheckpointsField = Annotated[
    CheckpointsShape | None,
    BeforeValidator(_as_mapping, json_schema_input_type=bool | float | str | CheckpointsShape),
]
