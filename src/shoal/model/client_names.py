"""The clients that Shoal drives out of the box; each is an agent of that name where nobody describes another."""

CLIENTS = ("claude", "codex", "goose", "gemini", "copilot", "opencode", "aider")
ACP = "acp"
"""Any agent that speaks the Agent Client Protocol, by its command."""
EVERY = (*CLIENTS, ACP)
ENTRY_POINTS = "shoal.adapters"
"""The group of entry points by which other packages bring adapters."""
