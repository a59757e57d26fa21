"""Effects composed: one verb per file."""
