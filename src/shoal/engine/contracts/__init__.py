"""Contracts held against the work of a step: one file for each kind that needs more than a line."""
