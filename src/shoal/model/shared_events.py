"""The events of what the agents of a run share: messages, tasks, notes and claims."""

from shoal.model.claims import ClaimEvent
from shoal.model.notes import NoteEvent
from shoal.model.queue import QueueEvent
from shoal.model.talk import TalkEvent

SharedEvent = TalkEvent | QueueEvent | NoteEvent | ClaimEvent
