"""Kinds of wall: each turns a command and a policy into a command, and runs nothing."""
