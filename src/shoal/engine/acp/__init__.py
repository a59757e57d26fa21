"""Speaking the Agent Client Protocol with an agent behind its wall."""
