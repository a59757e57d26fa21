"""A model on loopback that does what a script says: for tests of agents, of pipelines, and of clients."""

from shoal.testing.model.conversation import Conversation, Message
from shoal.testing.model.recorded import Answered, Request
from shoal.testing.model.scripts import Script
from shoal.testing.model.server import ModelServer
from shoal.testing.model.turns import Cut, Delay, Fail, Garble, Hang, Say, Turn, Usage, Use

__all__ = [
    "Answered",
    "Conversation",
    "Cut",
    "Delay",
    "Fail",
    "Garble",
    "Hang",
    "Message",
    "ModelServer",
    "Request",
    "Say",
    "Script",
    "Turn",
    "Usage",
    "Use",
]
