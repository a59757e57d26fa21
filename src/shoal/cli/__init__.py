"""The command: one file for each verb."""
