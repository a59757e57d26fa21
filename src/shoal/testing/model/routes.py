"""Which wire format an address speaks."""

from shoal.testing.model import anthropic, chat, gemini, responses
from shoal.testing.model.conversation import Body, Wire

WIRES: dict[str, Wire] = {"anthropic": anthropic, "chat": chat, "responses": responses, "gemini": gemini}
ENDS = {
    "/messages": "anthropic",
    "/chat/completions": "chat",
    "/responses": "responses",
    ":generateContent": "gemini",
    ":streamGenerateContent": "gemini",
}
MODELS = {"object": "list", "data": [{"id": "scripted", "object": "model", "created": 0, "owned_by": "shoal"}]}


def protocol(path: str) -> str | None:
    """Name the wire format of an address that gives answers."""
    plain = path.partition("?")[0]
    return next((name for end, name in ENDS.items() if plain.endswith(end)), None)


def document(method: str, path: str, length: int) -> Body | None:
    """Give what lies at an address that gives no answers."""
    plain = path.partition("?")[0]
    tokens = max(1, length // 4)
    if method == "GET":
        return MODELS if plain.endswith("/models") else None
    if plain.endswith("/messages/count_tokens"):
        return {"input_tokens": tokens}
    if plain.endswith("/input_tokens"):
        return {"object": "response.input_tokens", "input_tokens": tokens}
    return {"totalTokens": tokens} if plain.endswith(":countTokens") else None
