"""Nouns: frozen values without I/O."""
