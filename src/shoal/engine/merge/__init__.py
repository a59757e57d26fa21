"""Bringing the work of sessions together on one branch, beside every checkout, and delivering it when asked to."""
