"""Text to plan: the only place that reads YAML, without effects but for the thin `load`."""
