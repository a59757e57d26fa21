"""Shoal runs many AI coding agents at once on one git repository, and brings their work back safely."""

__version__ = "0.1.0"
