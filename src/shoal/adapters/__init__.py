"""Kinds of agent, one file each: an adapter turns a task into a command, and runs nothing."""
