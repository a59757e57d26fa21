"""The events of what the agents of a run share: messages, tasks and notes."""

from shoal.model.notes import NoteEvent
from shoal.model.queue import QueueEvent
from shoal.model.talk import TalkEvent

SharedEvent = TalkEvent | QueueEvent | NoteEvent
