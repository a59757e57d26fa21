"""The events of what the agents of a run share: messages and tasks."""

from shoal.model.queue import QueueEvent
from shoal.model.talk import TalkEvent

SharedEvent = TalkEvent | QueueEvent
