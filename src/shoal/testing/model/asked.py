"""Bytes of a client, read as a request for an answer."""

import json

from shoal.testing.model.connection import BadRequest, Received
from shoal.testing.model.conversation import Conversation
from shoal.testing.model.recorded import Request, without_key, without_keys
from shoal.testing.model.routes import WIRES

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading JSON of the wrong shape comes to."""


def asked(protocol: str, received: Received) -> Request:
    """Read a request, or raise `BadRequest`: clients send what they like."""
    try:
        conversation = WIRES[protocol].read(received.path, json.loads(received.content))
        _assert_tools(conversation)
    except UNREADABLE as error:
        raise BadRequest(400, f"the request cannot be read: {error!r}"[:500]) from None
    return Request(
        protocol=protocol,
        path=without_key(received.path),
        headers=without_keys(received.headers),
        raw=received.content,
        conversation=conversation,
    )


def _assert_tools(conversation: Conversation) -> None:
    for name, schema in conversation.tools.items():
        shapes = {} if schema is None else schema.get("properties") or {}
        if not isinstance(name, str) or not all(isinstance(shape, dict) for shape in shapes.values()):
            raise TypeError(f"the schema of {name!r} is none")
