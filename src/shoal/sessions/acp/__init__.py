"""Agents that speak the Agent Client Protocol: start at `conversation.py`."""
