"""The key `talk`: what an agent may do with other agents of its run."""

from pydantic import Field

from shoal.model.talk import DEEPEST, MOST_CHILDREN, TalkGrant
from shoal.pipeline.fields import Shape


class TalkShape(Shape):
    """What an agent may do with other agents of its run, by tools in its sandbox; default: nothing."""

    spawn: int = Field(default=0, ge=0, le=MOST_CHILDREN)
    """How many sessions it may start, with all that those start in turn."""
    depth: int = Field(default=1, ge=0, le=DEEPEST)
    """How many generations of sessions there may be below it."""
    message: bool = False
    """Whether it may send messages to other agents that may, and gets theirs."""
    notes: bool = False
    """Whether it may use the notes that the agents of the run share."""
    queue: str = ""
    """The queue, one of `queues`, that it may add tasks to."""

    agents: list[str] = Field(default_factory=list)
    """The agents that it may start, besides those like itself; under its own network and limits, or narrower ones."""

    @property
    def given(self) -> TalkGrant:
        """Build the value."""
        return TalkGrant(
            spawn=self.spawn,
            depth=self.depth,
            message=self.message,
            notes=self.notes,
            queue=self.queue,
            agents=tuple(self.agents),
        )
