"""Kinds of enforcement: what one agent may spend of memory, CPU, processes and disk."""
